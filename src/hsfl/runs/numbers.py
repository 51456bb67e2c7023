"""Numbers in the files of a run folder: what each kind may be, and how long a list over clients must be."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

MOST = 1e300  # sums of a few such numbers are still numbers

Number = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Index = Annotated[int, Field(ge=0, le=2**31)]


def check_length(name: str, values: Sequence[Any], num_clients: int) -> None:
    """Refuse a list over clients that has not one entry for each client. name: of the list, for the error."""
    if len(values) != num_clients:
        raise ValueError(f"{name} has {len(values)} entries and the number of clients is {num_clients}")
