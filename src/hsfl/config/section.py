"""What every section of the settings has in common."""

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from hsfl.errors import InputError
from hsfl.fleet.quantities import with_units


class Section(BaseModel):
    """A frozen part of the settings; an unknown field and a number that is infinite or NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers(cls, value: object, info: ValidationInfo) -> object:
        """True is no number; text in a field whose name ends with a unit is a quantity, such as 100Mbps."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise PydanticCustomError("not_a_bool", "Input should be another value than true or false")
        try:
            return with_units(str(info.field_name), value)
        except InputError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None
