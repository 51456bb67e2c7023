"""The section `options`: choices that the papers of frameworks leave open, and the sizes of models that have some; a class for each name.

`Section`, the base class of every section of the settings, is here, too: frozen, without unknown fields, and with text such as 100Mbps read
where a field's name ends with a unit.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from hsfl import plugins
from hsfl.errors import InputError
from hsfl.quantities import parse_setting


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
            return parse_setting(str(info.field_name), value)
        except InputError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None


class FLOptions(Section):
    """Options of FL."""

    needs_storage: bool = False  # leave out clients that cannot hold the whole model


class SLOptions(Section):
    """Options of SL."""

    hand_optimizer: bool = False  # the optimiser's state travels with the head and is counted; else it starts anew


class FSLOptions(Section):
    """Options of FSL: whether heads are averaged, too, or only the server's sides."""

    average: Literal["both", "server"] = (
        "both"  # both: heads and the server's sides; server: each client keeps its own head
    )


class PSLOptions(Section):
    """Options of PSL: whether the gradient at the cut is averaged instead of the heads' weight gradients."""

    cut_gradient: bool = False  # true: the gradient at the cut is averaged


class CPSLOptions(Section):
    """Options of CPSL: how many clusters, how they are formed, and whether each has a cut of its own."""

    clusters: int = Field(2, ge=1)  # how many clusters
    clustering: Literal["random", "gibbs"] = "random"  # gibbs: searched, as its authors do
    cut: Literal["one", "cluster"] = "one"  # one cut for all clients, or one for each cluster


class LocFedMixOptions(Section):
    """Options of LocFedMix-SL."""

    alpha: float = Field(1.0, gt=0)  # of the Beta that mixes smashed data
    reconstruction: float = Field(0.1, ge=0)  # weight of the local loss


class GPTOptions(Section):
    """Options of the model gpt."""

    width: int = Field(64, ge=1, le=2**14)  # numbers for each token between two units
    depth: int = Field(4, ge=1, le=256)  # blocks, each a unit
    heads: int = Field(4, ge=1, le=256)  # of attention; they divide the width


class ViTOptions(GPTOptions):
    """Options of the model vit."""

    patch: int = Field(4, ge=1, le=256)  # pixels on a side of the squares that an image is cut into


OF_MODELS = ("gpt", "vit")


class OptionsConfig(Section):
    """Choices that the papers leave open, a section for each framework, and the sizes of some models. The options of a plugin stand under the name that it
    registered.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    fl: FLOptions = FLOptions()
    sl: SLOptions = SLOptions()
    fsl: FSLOptions = FSLOptions()
    psl: PSLOptions = PSLOptions()
    cpsl: CPSLOptions = CPSLOptions()
    locfedmix_sl: LocFedMixOptions = LocFedMixOptions()
    gpt: GPTOptions = GPTOptions()
    vit: ViTOptions = ViTOptions()

    def of(self, name: str) -> Any:
        """The options of a framework, policy, model or data set: those given, else its defaults; null if it takes no options."""
        names = {*type(self).model_fields, *(self.model_extra or {})}
        return getattr(self, name) if name in names else plugins.default_options(name)
