"""What every process builds the same way from the run's settings: the model, where its units lie, and the shapes at each cut."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

from hsfl.codec_table import DOWN, NONE, UP, LinkChoices, allowed_links, checked_size
from hsfl.config import RunConfig
from hsfl.deploy.wire.coded_heads import HeadFiles
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.legal_state import LegalRanges
from hsfl.deploy.wire.model_chunks import fingerprint
from hsfl.errors import InputError
from hsfl.models.model_checks import check_fits, example
from hsfl.models.state import Layout, UnitState, read_state
from hsfl.models.units import SplitModel
from hsfl.runs.client_data import expected_task
from hsfl.runs.prepare import make_model
from hsfl.tasks import DEFAULT
from hsfl.training.clipping import Clip, clip_of
from hsfl.training.codecs.link_codecs import LinkCodecs, make_link_codecs
from hsfl.training.step import Part

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelKit:
    """The model with its first weights, and what follows from it."""

    config: RunConfig
    model: SplitModel
    layout: Layout
    input_shape: Shape
    num_classes: int

    @property
    def num_units(self) -> int:
        return self.layout.num_units

    @cached_property
    def initial(self) -> UnitState:
        """The state before the first round."""
        return read_state(self.model)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.layout, self.initial.floats.dtype)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of one sample's smashed data at each cut, 0 to num_units."""
        shapes, x = [self.input_shape], example(self.input_shape)
        self.model.eval()
        with torch.no_grad():
            for unit in self.model.units:
                x = unit(x)
                shapes.append(tuple(x.shape[1:]))
        return tuple(shapes)

    @cached_property
    def legal_ranges(self) -> LegalRanges:
        return LegalRanges.of(self.model)

    def codecs_of(self, text: str | None) -> LinkCodecs:
        """The codecs of a client's smashed data, gradients and heads. text: as in `link.codecs`, where clients have different ones; None: everybody's."""
        text = next(iter(self._codecs)) if text is None else text
        if text not in self._codecs:
            raise WireError("codec", f"codec {text!r}, where the run's settings have {', '.join(self._codecs)}")
        return self._codecs[text]

    @cached_property
    def _codecs(self) -> dict[str, LinkCodecs]:
        """The codecs of the settings by their text, everybody's first, and "none", which every client has at the last cut."""
        allowed = allowed_links(self.config.link)
        uncoded = {NONE: LinkChoices(model=next(iter(allowed.values())).model)}
        return {
            text: make_link_codecs(links, self.model, self.layout)
            for text, links in (allowed if NONE in allowed else allowed | uncoded).items()
        }

    @cached_property
    def head_files(self) -> HeadFiles:
        """How trained heads travel to the edge server; all clients have one codec for them."""
        return HeadFiles(self.codecs_of(None).model, next(iter(allowed_links(self.config.link).values())).model)

    @property
    def batch_bytes(self) -> int:
        """The longest message that a client sends: a batch of smashed data and labels, coded or not, and what describes them."""
        return self._message_bytes(UP)

    @property
    def gradient_bytes(self) -> int:
        """The longest message that a client is sent: the gradient of a batch, coded or not, its loss, and what describes them."""
        return self._message_bytes(DOWN)

    def _message_bytes(self, direction: str) -> int:
        largest = max(prod(shape) for shape in self.shapes) * self.initial.floats.itemsize + 8
        plain = (self.config.train.batch_size + 1) * largest
        return max(plain, self._coded_bytes(direction)) + (1 << 16)

    def _coded_bytes(self, direction: str) -> int:
        """The most that a coded batch takes, with its labels; a codec may make a message longer, too."""
        size, number_bytes = self.config.train.batch_size, self.initial.floats.itemsize
        codecs = [getattr(links, direction) for links in allowed_links(self.config.link).values()]
        sizes = [
            checked_size(codec, (size, *shape), number_bytes)
            for codec in codecs
            if codec is not None
            for shape in self.shapes
        ]
        return round(max(sizes)) + 8 * size if sizes else 0

    @cached_property
    def clip(self) -> Clip | None:
        """How updates are clipped; None where they are not."""
        return clip_of(self.config.train.clip_norm, self.model, self.layout)

    def make_part(self, start: int, stop: int) -> Part:
        """The units `[start, stop)`, ready to be trained."""
        return Part(self.model, self.layout, start, stop, self.config.train)

    def empty(self, start: int, stop: int) -> UnitState:
        """A state of the units `[start, stop)` in which every number is zero."""
        return UnitState.empty(self.layout, start, stop, self.initial.floats.dtype)

    def check_units(self, units: UnitState, who: str) -> None:
        """Refuse units of another server that training cannot give."""
        try:
            self.legal_ranges.check(units)
        except WireError as error:
            raise InputError(f"{who} holds units that training cannot give: {error}; put back its folder") from None

    def check_fingerprint(self, other: str, who: str) -> None:
        if other != self.fingerprint:
            raise InputError(
                f"{who} has built another model than the main server ({other[:8]}, not {self.fingerprint[:8]}); install the same "
                "hsfl and the same plugins on both"
            )


def make_kit(config: RunConfig, input_shape: Shape, num_classes: int, certify: bool = False) -> ModelKit:
    """The kit of a run, on the CPU. input_shape: of one sample. certify: whether to certify a module that is split, which the main server
    does for all. Settings for simulations alone are an error."""
    if config.device != "cpu":
        raise InputError(f"run.device is {config.device!r}; real machines train on the CPU, leave it out")
    for name, usual in (("choose", "uniform"), ("receivers", "all"), ("drop_rate", 0.0)):
        if (value := getattr(config.train, name)) != usual:
            raise InputError(f"train.{name} is {value!r}; it is for simulated fleets, so leave it out on real machines")
    if (task := expected_task(config)).name != DEFAULT or config.train.loss is not None:
        raise InputError(f"{task.name} is for simulated fleets yet; real machines train {DEFAULT} with its own loss")
    model = make_model(config, input_shape, num_classes, certify).eval()
    check_fits(model, example(input_shape, model.input_dtype), num_classes)
    return ModelKit(config, model, Layout.of(model), input_shape, num_classes)
