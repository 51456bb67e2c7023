"""What fields of messages may hold: every number and every text has a limit."""

from typing import Annotated

from pydantic import ConfigDict, Field, with_config

Text = Annotated[str, Field(max_length=4096)]
Id = Annotated[str, Field(max_length=128)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Small = Annotated[int, Field(ge=0, le=2**31)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
LOWEST_RATE, HIGHEST_RATE = 1.0, 1e18  # bits or FLOPs per second; beyond these a plan has no finite seconds
UnitSeconds = Annotated[list[Seconds], Field(max_length=4096)]
NumberSeconds = Annotated[list[Annotated[float, Field(ge=0, le=1.0, allow_inf_nan=False)]], Field(max_length=32)]
Rate = Annotated[float, Field(ge=LOWEST_RATE, le=HIGHEST_RATE, allow_inf_nan=False)]
MOST_SAMPLES = 10_000_000  # of one client; the main server keeps a number for each batch
Samples = Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
Classes = Annotated[list[Samples], Field(max_length=1 << 16)]  # a number of samples for each class
Finite = Annotated[float, Field(ge=-1e300, le=1e300, allow_inf_nan=False)]
Units = Annotated[list[Small], Field(max_length=4096)]
strict = with_config(ConfigDict(extra="forbid"))
Seats = Annotated[list[Small], Field(max_length=100_000)]
Long = Annotated[str, Field(max_length=1 << 18)]  # JSON
