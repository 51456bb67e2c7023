"""Texts for a model that guesses the next token: a folder of text files (or one file), or the help texts of Python itself.

A token is a byte, or what a tokenizer file makes of the text; a sample is a block of them, and its target is the block one token on.
What does not fill a block at the end of a file is left out. A client of `data.partition = "given"` holds a folder of the folder, or a file
where there are no folders in it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hsfl.data.readers.reader_base import SPLIT_SEED, TEST_FRACTION, Arrays, FileSettings, Request, reading
from hsfl.errors import DataMissing, InputError, install_extra
from hsfl.rng import stream

BLOCK = 128
BYTES = 256
MOST_BYTES = 2**30  # of all files together, since tokens take eight times that
TASK = "next_token"
MOST_UNKNOWN = 0.5  # of the tokens; beyond it a tokenizer is for other texts
WAY_OUT = "save it as text in UTF-8, or move it out of the folder"

Encode = Callable[["Text"], np.ndarray]


@dataclass(frozen=True)
class Text:
    """A file's text, what errors call it, and the client that holds it."""

    where: str
    client: str
    content: str


def read_text(request: Request) -> Arrays:
    """The text files of a folder, or one file. Files and folders whose names begin with a dot are left aside."""
    as_typed = Path(request.path).expanduser()
    path = as_typed if as_typed.exists() else request.data_dir / as_typed
    if path.is_file():
        return _blocks([Text(str(path), path.name, _content(path))], request)
    folder = request.folder()
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not _hidden(file.relative_to(folder))]
    if not files:
        raise InputError(f"{folder} holds no files; put text files there")
    if (size := sum(file.stat().st_size for file in files)) > MOST_BYTES:
        raise InputError(f"{folder} holds {size:,} bytes of text, above {MOST_BYTES:,}; take a part of it")
    return _blocks([Text(str(file), file.relative_to(folder).parts[0], _content(file)) for file in files], request)


def read_pydoc(request: Request) -> Arrays:
    """The help texts that come with Python (`help("for")`, ...), some 79 topics and 460,000 characters; they differ a little between
    versions of Python."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataMissing(
            "pydoc comes with Python, but pydoc_data is missing here; name a folder: text:PATH"
        ) from error
    arrays = _blocks([Text(f"pydoc, topic {name}", name, topics[name]) for name in sorted(topics)], request)
    return arrays._replace(clients=None, client_names=())


def _blocks(texts: list[Text], request: Request) -> Arrays:
    """The texts as blocks of tokens, a part of them held out for testing."""
    files = request.files
    if files.task is not None and files.targets != "tokens":
        raise InputError(f"train.task is {files.task!r} but the data are text; leave it out, or set it to {TASK}")
    encode, vocabulary = _tokenizer(request)
    size, parts, owner = files.block or BLOCK, list[np.ndarray](), list[int]()
    for number, text in enumerate(texts):
        tokens = encode(text)
        count = max(len(tokens) - 1, 0) // size
        parts.append(
            np.lib.stride_tricks.sliding_window_view(tokens, size + 1)[::size][:count] if count else _no_block(size)
        )
        owner += [number] * count
    whole, source = np.concatenate(parts), np.array(owner, np.int64)  # [n, block + 1], [n] the text of each
    if len(whole) < 2:
        raise InputError(
            f"{texts[0].where}{' and the others' if len(texts) > 1 else ''} fill {len(whole)} blocks of {size} tokens; "
            "give more text, or lower data.block"
        )
    is_test = _held_out(source, len(texts), files)
    names = sorted({text.client for text in texts})
    clients = np.array([names.index(text.client) for text in texts])[source]
    train, test = whole[~is_test], whole[is_test]
    holder, there = _present(clients[~is_test], names)
    sides = (train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:])
    return Arrays(*sides, (), False, holder, there, files.task or TASK, vocabulary)


def _no_block(size: int) -> np.ndarray:
    return np.empty((0, size + 1), np.int64)


def _present(clients: np.ndarray, names: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Clients numbered anew without those whose text fills no training block."""
    there, index = np.unique(clients, return_inverse=True)
    return index.astype(np.int64), tuple(names[place] for place in there)


def _held_out(source: np.ndarray, num_texts: int, files: FileSettings) -> np.ndarray:
    """Which blocks are for testing, [n] bool: the last of every text, or all of some texts; the same in every run."""
    fraction = TEST_FRACTION if files.test_fraction is None else files.test_fraction
    counts = np.bincount(source, minlength=num_texts)
    if fraction == 0:
        return np.zeros(len(source), bool)
    if files.text_split == "file":
        filled = np.flatnonzero(counts)
        if len(filled) < 2:
            raise InputError("data.text_split is 'file' but one file alone fills a block; set 'position'")
        order = stream(SPLIT_SEED, "text split").permutation(filled)
        taken = np.cumsum(counts[order])
        number = min(1 + int(np.abs(taken - fraction * taken[-1]).argmin()), len(order) - 1)
        return np.isin(source, order[:number])
    place = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)  # of a block in its text
    num_train = counts - np.rint(fraction * counts).astype(np.int64)
    held = place >= np.maximum(num_train, 1)[source]
    if not held.any():  # many short texts, each of a few blocks
        held[-max(1, round(fraction * len(held))) :] = True
    return held


def _hidden(path: Path) -> bool:
    return any(name.startswith(".") for name in path.parts)


def _content(path: Path) -> str:
    with reading(path, WAY_OUT):
        content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text: byte {error.start} is 0x{content[error.start]:02x}; {WAY_OUT}") from None
    if "\0" in text:
        raise InputError(f"{path} is no text: it holds a zero byte at {text.index(chr(0))}; {WAY_OUT}")
    return text


def _tokenizer(request: Request) -> tuple[Encode, int]:
    """How a text becomes tokens, and how many tokens there are."""
    if request.files.tokenizer is None:
        return (lambda text: np.frombuffer(text.content.encode(), np.uint8).astype(np.int64)), BYTES
    path = request.file(request.files.tokenizer)
    try:
        from tokenizers import Tokenizer  # here, because it is an extra
    except ImportError:
        raise InputError(f"data.tokenizer is {path} but the library is missing; {install_extra('text')}") from None
    with reading(path, "give a tokenizer.json that the library `tokenizers` saved"):
        tokenizer: Any = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    unknown = _unknown(tokenizer)

    def encode(text: Text) -> np.ndarray:
        with reading(path, f"it does not fit {text.where}: take the tokenizer that was made for such text"):
            tokens = np.array(tokenizer.encode(text.content, add_special_tokens=False).ids, np.int64)
        share = float(np.mean(tokens == unknown)) if unknown is not None and len(tokens) else 0.0
        if share > MOST_UNKNOWN:
            raise InputError(
                f"data.tokenizer {path} does not fit {text.where}: {share:.0%} of its tokens are unknown; take one that was made for "
                "such text, or leave it out to train on bytes"
            )
        return tokens

    return encode, 1 + max(tokenizer.get_vocab().values(), default=-1)


def _unknown(tokenizer: Any) -> int | None:
    """The number of the token that stands for whatever a tokenizer does not know; None where there is none."""
    token = getattr(tokenizer.model, "unk_token", None)
    return tokenizer.token_to_id(token) if isinstance(token, str) else getattr(tokenizer.model, "unk_id", None)
