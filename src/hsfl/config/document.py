"""`docs/settings.md`: every setting, its default and its explanation, from the sources of `sections` and `options`.

`python -m hsfl.config.document` prints it; a test compares the file with it.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hsfl.config import options, sections
from hsfl.config.sections import RunConfig

HEAD = """# Settings

Every setting of a config, with its default. A config is a TOML (or JSON) file with these sections; `--set section.field=value`
changes one of them. Where a name ends with a unit (`_hz`, `_bps`, `_bits`, `_w`, `_s`, `_m`), text is read, too: `"5GHz"`.
An unknown name is an error that suggests the nearest one, and a setting that would do nothing is an error that says why.

This file is written by `python -m hsfl.config.document`.
"""


def document() -> str:
    """The whole file."""
    comments = _comments()
    top_fields = [name for name in RunConfig.model_fields if not _is_section(RunConfig, name)]
    parts = [HEAD, "## At the top\n", _table(RunConfig, top_fields, comments)]
    for name, info in RunConfig.model_fields.items():
        if _is_section(RunConfig, name):
            parts += list(_section(name, info.annotation, comments))
    return "\n".join(parts)


def _section(name: str, kind: Any, comments: dict[tuple[str, str], str]) -> Iterator[str]:
    """A heading, what the section is about, its fields, and the sections within it."""
    about = " ".join((kind.__doc__ or "").split())
    yield f"## [{name}]\n"
    yield f"{about}\n"
    plain = [field for field in kind.model_fields if not _is_section(kind, field)]
    if plain:
        yield _table(kind, plain, comments)
    for field, info in kind.model_fields.items():
        if _is_section(kind, field):
            yield from _section(f"{name}.{field}", info.annotation, comments)


def _is_section(model: type[BaseModel], name: str) -> bool:
    annotation = model.model_fields[name].annotation
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _table(model: type[BaseModel], names: list[str], comments: dict[tuple[str, str], str]) -> str:
    rows = ["| setting | default | what |", "| --- | --- | --- |"]
    for name in names:
        info = model.model_fields[name]
        field_comments = [comments[kind.__name__, name] for kind in model.__mro__ if (kind.__name__, name) in comments]
        clauses = [*field_comments[:1], info.description or "", _choices(info.annotation)]
        explanation = "; ".join(word for word in clauses if word).replace("|", "\\|")
        rows.append(f"| `{name}` | `{_default(info.default)}` | {explanation} |")
    return "\n".join(rows) + "\n"


def _default(value: Any) -> str:
    """As TOML has it; what has no default value is `null`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(_default(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choices(annotation: Any) -> str:
    """The words that a field takes, where it takes only certain ones."""
    choices = [
        word for alternative in (annotation, *getattr(annotation, "__args__", ())) for word in _literals(alternative)
    ]
    return f"one of {', '.join(choices)}" if len(choices) > 1 else ""


def _literals(annotation: Any) -> list[str]:
    if getattr(annotation, "__origin__", None) is None or "Literal" not in str(annotation.__origin__):
        return []
    return [f"`{word}`" for word in annotation.__args__]


def _comments() -> dict[tuple[str, str], str]:
    """The comment of each field, by its class and name: on its lines, or on the lines of comments right above it."""
    return _comments_in(Path(sections.__file__)) | _comments_in(Path(options.__file__))


def _comments_in(path: Path) -> dict[tuple[str, str], str]:
    source = path.read_text("utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comment_at = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    lines = source.splitlines()
    comment_of = {}
    for definition in ast.parse(source).body:
        for node in definition.body if isinstance(definition, ast.ClassDef) else []:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(definition, ast.ClassDef)
            ):
                first = node.lineno
                while lines[first - 2].strip().startswith("#"):
                    first -= 1
                texts = [
                    comment_at[number]
                    for number in range(first, (node.end_lineno or first) + 1)
                    if number in comment_at
                ]
                comment_of[definition.name, node.target.id] = " ".join(texts)
    return comment_of


if __name__ == "__main__":
    print(document(), end="")
