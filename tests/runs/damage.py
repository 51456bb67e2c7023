"""Damage to files, drawn at random: values of other kinds, numbers that are none, short lists, cut and flipped bytes."""

import json
import random
from pathlib import Path
from typing import Any

WRONG = (
    *("word", "", "\x1b[31mred\x1b[0m", None, True, [], {}, -5, 0, 7, 10**30, 10**400, 1e300, -1.5, 0.25),
    *(float("nan"), float("inf"), float("-inf"), [[]], {"a": {"b": []}}, "\ud800", [None] * 3, "x" * 5000),
)
DEEP = "@deep@"  # stands for JSON that is nested too deeply to be built


def damaged(path: Path, rng: random.Random) -> str:
    """Damage the file in one of the ways that fit it; returns which way, for a failing test to say."""
    if path.suffix in (".json", ".jsonl") and rng.random() < 0.75:
        return _edit_json(path, rng)
    return _edit_bytes(path, rng)


def _edit_bytes(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    at = rng.randrange(max(1, min(len(content), rng.choice((64, 2000, 10**9)))))
    way = rng.choice(("cut off", "flip", "empty", "garbage", "insert", "not UTF-8"))
    if way == "cut off":
        del content[at:]
    elif way == "flip" and content:
        content[at] ^= 1 << rng.randrange(8)
    elif way == "empty":
        content.clear()
    elif way == "garbage":
        content[at : at + 40] = rng.randbytes(40)
    elif way == "insert":
        content[at:at] = rng.choice((b"\n", b"\x00", b"1e400", b'"', b"[" * 5000, b"\r"))
    else:
        content[at:at] = b"\xff\xfe\xfa"
    path.write_bytes(bytes(content))
    return f"{path.name}: {way} at byte {at}"


def _edit_json(path: Path, rng: random.Random) -> str:
    texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    line = rng.randrange(len(texts))
    texts[line], said = edit_text(texts[line], rng)
    path.write_text("\n".join(texts) + "\n", errors="surrogatepass")
    return f"{path.name} line {line + 1}: {said}"


def edit_text(text: str, rng: random.Random) -> tuple[str, str]:
    """JSON with one value changed, taken out or repeated, and what was done."""
    value = json.loads(text)
    spots = list(_spots(value))
    if not spots or rng.random() < 0.05:  # all of it
        wrong = rng.choice((*WRONG, DEEP))
        return _dumped(wrong), f"all of it becomes {wrong!r:.60}"
    holder, key, name = rng.choice(spots)
    way = rng.choice(("replace", "replace", "replace", "delete", "repeat", "deep"))
    if way == "delete":
        del holder[key]
    elif way == "repeat" and isinstance(holder, list):
        holder.append(holder[key])
    elif way == "deep":
        holder[key] = DEEP
    else:
        holder[key] = wrong = rng.choice(WRONG)
        way = f"becomes {wrong!r:.60}"
    return _dumped(value), f"{name} {way}"


def _dumped(value: Any) -> str:
    text = json.dumps(value).replace("Infinity", "1e400")
    return text.replace(json.dumps(DEEP), "[" * 3000 + "]" * 3000)


def _spots(value: Any, name: str = "") -> Any:
    """Every place in a JSON value: (what holds it, key or index, name)."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        here = f"{name}[{key}]" if isinstance(value, list) else f"{name}.{key}"
        yield value, key, here
        yield from _spots(part, here)
