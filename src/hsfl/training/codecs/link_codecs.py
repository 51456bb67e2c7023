"""The codecs of a link, made from the settings `link.up`, `link.down` and `link.model`."""

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from hsfl.codec_table import CodecChoice, LinkChoices
from hsfl.models.state import Layout
from hsfl.models.units import SplitModel
from hsfl.training.codecs.codec import Codec
from hsfl.training.codecs.head_codec import HeadCodec


@dataclass(frozen=True)
class LinkCodecs:
    """The codec of each direction; None for none."""

    up: Codec | None = None
    down: Codec | None = None
    model: HeadCodec | None = None


UNCODED = LinkCodecs()


def make_link_codecs(choices: LinkChoices, model: SplitModel, layout: Layout) -> LinkCodecs:
    """The codecs of a link for this model."""
    if not choices.lossy:
        return UNCODED
    head = None if choices.model is None else HeadCodec.of(_checked_codec(choices.model), model, layout)
    return LinkCodecs(make_codec(choices.up), make_codec(choices.down), head)


def make_codec(choice: CodecChoice | None) -> Codec | None:
    """The codec of a choice."""
    return None if choice is None else _checked_codec(choice)


@lru_cache(maxsize=16)
def _checked_codec(choice: CodecChoice) -> Codec:
    code = choice.row.code
    if isinstance(code, str):
        module, _, name = code.partition(":")
        code = getattr(import_module(module), name)
    codec: Codec = code() if choice.row.number is None else code(choice.number)
    return codec
