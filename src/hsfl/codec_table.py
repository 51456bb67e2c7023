"""The codecs by name: how many bytes each makes of a message, and how many operations that takes. Imports no torch.

A codec turns a tensor into fewer bytes before it travels, and back. What it does is in its file in `training/codecs`; the rows here are what
a clock and a planner need to know. A codec is chosen by a text, its name and perhaps a number: `int8`, `topk:0.1`.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hsfl import plugins
from hsfl.errors import InputError, known_name, shown_value

Shape = tuple[int, ...]
NONE = "none"
UP, DOWN, MODEL = "up", "down", "model"  # smashed data, their gradients, and heads on their way to the edge server
DIRECTIONS = (UP, DOWN, MODEL)


@dataclass(frozen=True)
class Number:
    """What the number behind a codec's name may be, and which one is meant where none is given."""

    usual: float
    lowest: float
    highest: float
    about: str = ""  # why not less or more


@dataclass(frozen=True)
class CodecRow:
    """One codec.

    code: where its class is, "module:Class", or the class itself.
    num_bytes: of a message, from its shape, the bytes of one of its numbers, and the number behind the codec's name. Where the size depends on the
        data, the most that may be sent.
    encode_operations, decode_operations: for each number of a message, stated rather than measured.
    directions: where it may be used.
    """

    name: str
    code: str | type[Any]
    num_bytes: Callable[[Shape, int, float], float]
    encode_operations: float
    decode_operations: float
    directions: tuple[str, ...] = DIRECTIONS
    number: Number | None = None
    depends_on_data: bool = False  # whether messages of one shape differ in their bytes


@dataclass(frozen=True)
class CodecChoice:
    """A codec with its number."""

    row: CodecRow
    number: float = 0.0

    def num_bytes(self, shape: Shape, number_bytes: int) -> float:
        """The bytes of a message of this shape, whose numbers have so many bytes each; no numbers are no bytes."""
        return self.row.num_bytes(shape, number_bytes, self.number) if math.prod(shape) else 0.0


@dataclass(frozen=True)
class LinkChoices:
    """The codec of each direction; None for none."""

    up: CodecChoice | None = None
    down: CodecChoice | None = None
    model: CodecChoice | None = None

    @property
    def lossy(self) -> bool:
        """Whether anything is changed on its way."""
        return (self.up or self.down or self.model) is not None

    def text(self) -> str:
        """The codecs in use, as the settings have them: "link.up=int8, link.model=float16"."""
        choices = {name: getattr(self, name) for name in DIRECTIONS}
        return ", ".join(f"link.{name}={choice_text(choice)}" for name, choice in choices.items() if choice is not None)


# --- sizes of messages


def num_scales(shape: Shape) -> int:
    """How many scales int8 sends: one for each channel of images [n, c, h, w], each token of sequences [n, t, d], each sample [n, d], else one."""
    if len(shape) >= 4:
        return shape[1]
    return math.prod(shape[:-1]) if len(shape) > 1 else 1


def num_kept(shape: Shape, fraction: float) -> int:
    """How many numbers top-k keeps: the same count of every sample, rounded up."""
    samples = shape[0] if len(shape) > 1 else 1
    return samples * math.ceil(fraction * (math.prod(shape) // samples) - 1e-9)


def num_mask_bytes(count: int) -> int:
    """The bytes of a mask with a bit for each of so many numbers."""
    return -(-count // 8)


def _float16_bytes(shape: Shape, number_bytes: int, _: float) -> float:
    return 2.0 * math.prod(shape) + 2  # one exponent


def _int8_bytes(shape: Shape, number_bytes: int, _: float) -> float:
    return float(math.prod(shape) + scale_bytes(number_bytes) * num_scales(shape))


def scale_bytes(number_bytes: int) -> int:
    """Scales are float32; those of a float64 message are float64, whose range they need."""
    return 8 if number_bytes == 8 else 4


def _topk_bytes(shape: Shape, number_bytes: int, fraction: float) -> float:
    return float(num_kept(shape, fraction) * number_bytes + num_mask_bytes(math.prod(shape)))


FLOOR = "10 % is the floor, below which accuracy falls steeply (docs/codecs.md)"
CODECS: dict[str, CodecRow] = {
    row.name: row
    for row in (
        CodecRow("float16", "hsfl.training.codecs.float16:Float16", _float16_bytes, 4, 2),
        CodecRow("int8", "hsfl.training.codecs.int8:Int8", _int8_bytes, 6, 2),
        CodecRow(
            "topk", "hsfl.training.codecs.topk:TopK", _topk_bytes, 20, 2, (UP, DOWN), Number(0.1, 0.1, 1.0, FLOOR), True
        ),
    )
}


def register_codec(
    name: str,
    codec: type[Any],
    *,
    num_bytes: Callable[[Shape, int, float], float],
    encode_operations: float = 4.0,
    decode_operations: float = 2.0,
    directions: Collection[str] = DIRECTIONS,
    number: tuple[float, float, float] | None = None,
) -> None:
    """Add a codec of your own.

    codec: a class with `encode`, `check` and `decode`, as `hsfl.Codec` has them; it is made with the number behind its name, or with nothing.
    num_bytes: `num_bytes(shape, number_bytes, number)` gives the bytes of a message, by which rounds are timed and planned.
    encode_operations, decode_operations: for each number of a message.
    directions: some of up, down and model. number: (usual, lowest, highest) of the number behind the name; None where there is none.
    """
    for method in ("encode", "check", "decode"):
        if not (isinstance(codec, type) and callable(getattr(codec, method, None))):
            raise InputError(f"codec {name!r} has no {method}; give a class that derives from hsfl.Codec")
    plugins.check_call(f"codec {name!r}: num_bytes", num_bytes, "shape", "number_bytes", "number")
    if number is None:
        plugins.check_call(f"codec {name!r}: class {codec.__name__}", codec)
    else:
        plugins.check_call(f"codec {name!r}: class {codec.__name__}", codec, "number")
    for direction in directions:
        known_name(f"codec {name!r}: direction", direction, DIRECTIONS)
    operations = (encode_operations, decode_operations)
    if not all(isinstance(count, int | float) and 0 <= count < math.inf for count in operations):
        raise InputError(f"codec {name!r} takes {operations} operations; give two numbers that are not negative")
    encode, decode = map(float, operations)
    row = CodecRow(name, codec, num_bytes, encode, decode, tuple(directions), _number(name, number))
    plugins.register_name("codec", CODECS, name, row)


def _number(name: str, number: Any) -> Number | None:
    if number is None:
        return None
    try:
        usual, lowest, highest = map(float, number)
    except (TypeError, ValueError):
        raise InputError(
            f"codec {name!r} has number {number!r}; give (usual, lowest, highest), or leave it out"
        ) from None
    if not -math.inf < lowest <= usual <= highest < math.inf:
        raise InputError(f"codec {name!r} has number {number!r}; give (usual, lowest, highest) in this order of size")
    return Number(usual, lowest, highest)


# --- codecs by their texts


def choose_codec(field: str, text: str, direction: str) -> CodecChoice | None:
    """The codec that a text such as `topk:0.1` names; None for none. field: where the text stands, for errors."""
    name, colon, number_text = text.partition(":")
    if text == NONE:
        return None
    row = CODECS.get(name)
    if row is None:
        known_name(f"{field}: codec", name, [NONE, *CODECS], plugins.WAY_OUT)
        raise InputError(f"{field} is {text!r} but {NONE} takes no number; write {NONE}")
    if direction not in row.directions:
        others = ", ".join([NONE, *(other.name for other in CODECS.values() if direction in other.directions)])
        raise InputError(f"{field} is {text!r}, which is for {' and '.join(row.directions)}; choose one of {others}")
    if not colon:
        return CodecChoice(row, 0.0 if row.number is None else row.number.usual)
    if row.number is None:
        raise InputError(f"{field} is {text!r} but {name} takes no number; write {name}")
    return CodecChoice(row, _read_number(field, text, number_text, row.number))


def _read_number(field: str, text: str, number_text: str, limits: Number) -> float:
    try:
        value = float(number_text)
    except ValueError:
        value = math.nan
    if not limits.lowest <= value <= limits.highest:
        about = f" ({limits.about})" if limits.about else ""
        name = text.partition(":")[0]
        raise InputError(
            f"{field} is {text!r}; give a number in {limits.lowest:g}..{limits.highest:g}{about}, such as {name}:{limits.usual:g}"
        )
    return value


class LinkSettings(Protocol):
    """The section `link` of a config."""

    @property
    def allowed(self) -> tuple[str, ...]: ...

    @property
    def codecs(self) -> tuple[str, ...] | None: ...

    @property
    def points(self) -> str | None: ...

    @property
    def max_points(self) -> float | None: ...

    @property
    def up(self) -> str: ...

    @property
    def down(self) -> str: ...

    @property
    def model(self) -> str: ...


def allowed_links(link: LinkSettings) -> dict[str, LinkChoices]:
    """The codecs of which a planner may choose one for each client, by their texts. One alone is everybody's.

    An entry of `link.allowed` is a codec for smashed data and gradients (`int8`), or one for each (`topk:0.1/int8`). `link.model` is the same for
    all. Where only `none` is allowed, which is the default, `link.up` and `link.down` are everybody's, or `link.codecs` gives each client its own.
    """
    given = LinkChoices(*(choose_codec(f"link.{name}", getattr(link, name), name) for name in DIRECTIONS))
    several = {} if tuple(link.allowed) == (NONE,) else {"link.allowed": link.allowed}
    several |= {} if link.codecs is None else {"link.codecs": link.codecs}
    if not several:
        return {pair_text(given): given}
    (field, texts), *others = several.items()
    if others or given.up is not None or given.down is not None:
        other = others[0][0] if others else replace(given, model=None).text()
        raise InputError(
            f"{field} is {list(texts)}, of which each client gets one, beside {other}; leave one of the two out"
        )
    choices = [replace(read_pair(field, text), model=given.model) for text in texts]
    allowed = {pair_text(choice): choice for choice in choices}
    if field == "link.allowed" and len(allowed) < len(choices):
        raise InputError(f"{field} is {list(texts)}, which names a codec twice; name each once")
    return allowed


def link_choices(link: LinkSettings) -> LinkChoices:
    """Everybody's codecs, where clients cannot have different ones."""
    choices = list(allowed_links(link).values())
    if len(choices) > 1:
        raise InputError(
            f"{link_text(link)} gives clients different codecs, which simulated runs and their plans do; allow one codec here, as link.up and link.down"
        )
    return choices[0]


def read_pair(field: str, text: str) -> LinkChoices:
    """The codecs of a text such as `int8`, for both directions, or `topk:0.1/int8`, up/down. field: where the text stands, for errors."""
    up, slash, down = text.partition("/")
    return LinkChoices(choose_codec(field, up, UP), choose_codec(field, down if slash else up, DOWN))


def used_codecs(link: LinkSettings) -> list[CodecChoice]:
    """The codecs of smashed data and gradients that the settings may use, each once."""
    choices = (choice for pair in allowed_links(link).values() for choice in (pair.up, pair.down))
    return list(dict.fromkeys(choice for choice in choices if choice is not None))


def usual_codecs(direction: str) -> list[CodecChoice]:
    """Every codec that may be used in a direction, with its usual number."""
    rows = (row for row in CODECS.values() if direction in row.directions)
    return [CodecChoice(row, 0.0 if row.number is None else row.number.usual) for row in rows]


def pair_text(choices: LinkChoices) -> str:
    """The text that `read_pair` reads, in its shortest form."""
    up, down = (NONE if choice is None else choice_text(choice) for choice in (choices.up, choices.down))
    return up if up == down else f"{up}/{down}"


def link_text(link: LinkSettings) -> str | None:
    """The codecs in use, as the settings have them; None where nothing is changed on its way."""
    allowed = allowed_links(link)
    if not any(choices.lossy for choices in allowed.values()):
        return None
    if len(allowed) == 1:
        return next(iter(allowed.values())).text()
    model = next(iter(allowed.values())).model
    return f"link.{'allowed' if link.codecs is None else 'codecs'}={','.join(allowed)}" + (
        f", link.model={choice_text(model)}" if model is not None else ""
    )


def choice_text(choice: CodecChoice) -> str:
    """The text that names the choice."""
    return choice.row.name if choice.row.number is None else f"{choice.row.name}:{choice.number:g}"


def checked_size(choice: CodecChoice, shape: Shape, number_bytes: int) -> float:
    """The bytes of a message; an error where a codec of a plugin gives no such number."""
    size = choice.num_bytes(shape, number_bytes)
    if not isinstance(size, int | float) or not 0 <= size < math.inf:
        raise InputError(
            f"codec {choice.row.name!r}: num_bytes gives {shown_value(size)} for shape {shape}; return a number of bytes"
        )
    return float(size)
