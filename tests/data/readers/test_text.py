"""Texts become blocks of tokens, and targets that are no classes are checked."""

import json
from pathlib import Path

import numpy as np
import pytest

import hsfl
from hsfl.data.partition import partition
from hsfl.data.readers.reader_base import FileSettings
from hsfl.data.registry import class_counts_of, load_dataset
from hsfl.errors import InputError
from hsfl.rng import stream
from tests.naming import raises


def texts(folder: Path, **contents: str) -> Path:
    for name, content in contents.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


def read(folder: Path, **files):
    return load_dataset(f"text:{folder}", files=FileSettings(**files))


def test_a_block_is_followed_by_itself_one_token_on(tmp_path):
    content = "".join(chr(97 + i % 26) for i in range(101))
    data = read(texts(tmp_path, a=content), block=10)
    assert (data.train_x.shape, data.test_x.shape) == ((8, 10), (2, 10))
    every = np.concatenate([data.train_x, data.test_x])
    assert bytes(every.ravel().tolist()).decode() == content[:100]
    assert bytes(data.train_y[0].tolist()).decode() == content[1:11]
    assert (data.task, data.vocabulary, data.num_classes, data.classes) == ("next_token", 256, 256, ())
    assert data.train_x.dtype == data.train_y.dtype == np.int64
    assert class_counts_of(data)[0].num_train == 8


def test_clients_are_folders_or_files(tmp_path):
    folder = texts(tmp_path, ann__1="a" * 50, ann__2="b" * 50, bob__1="c" * 90, zoe__1="short", **{".hidden": "\0"})
    data = read(folder, block=8)
    assert data.client_names == ("ann", "bob")  # what fills no block is nobody's
    held = {name: set(data.train_x[data.clients == k].ravel().tolist()) for k, name in enumerate(data.client_names)}
    assert held == {"ann": {97, 98}, "bob": {99}}
    flat = texts(tmp_path / "flat", one="a" * 40, two="b" * 40)
    assert read(flat, block=8).client_names == ("one", "two")


def test_the_test_part_is_the_end_of_every_file_or_whole_files(tmp_path):
    texts(tmp_path, **{name: name * 121 for name in "abcde"})
    ends = read(tmp_path, block=12)
    assert set(ends.test_x.ravel()) == set(ends.train_x.ravel()) == set(b"abcde")
    files = read(tmp_path, block=12, text_split="file")
    assert not set(files.test_x.ravel()) & set(files.train_x.ravel())
    assert len(files.test_x) == 10
    half = read(tmp_path, block=12, test_fraction=0.5)
    assert len(half.test_x) == 25


def test_the_help_texts_of_python_need_no_file():
    data = load_dataset("pydoc", limit=50, limit_test=10, files=FileSettings(block=32))
    assert (data.train_x.shape, data.test_x.shape) == ((50, 32), (10, 32))
    assert data.clients is None


def test_a_tokenizer_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    data = read(texts(tmp_path / "texts", one="a b c " * 20), block=3, tokenizer=str(tmp_path / "words.json"))
    assert data.vocabulary == 3
    assert data.train_x[0].tolist() == [0, 1, 2]
    few = tokenizers.Tokenizer(tokenizers.models.WordLevel({"zebra": 0, "?": 5}, unk_token="?"))
    few.save(str(tmp_path / "few.json"))
    with raises(InputError, "few.json", "fit", "100%", "take one"):
        read(tmp_path / "texts", block=3, tokenizer=str(tmp_path / "few.json"))
    few.model = tokenizers.models.WordLevel({"zebra": 0})
    few.save(str(tmp_path / "none.json"))
    with raises(InputError, "none.json", "fit", "take the tokenizer"):
        read(tmp_path / "texts", block=3, tokenizer=str(tmp_path / "none.json"))
    gaps = tokenizers.Tokenizer(tokenizers.models.WordLevel({"b": 7, "?": 1}, unk_token="?"))
    gaps.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    gaps.save(str(tmp_path / "gaps.json"))
    data = read(texts(tmp_path / "b", one="b b a " * 20), block=3, tokenizer=str(tmp_path / "gaps.json"))
    assert data.vocabulary == 8  # numbers may have gaps, and the largest counts
    (tmp_path / "no.json").write_text(json.dumps({"a": 1}))
    with raises(InputError, "no.json", "tokenizer.json"):
        read(tmp_path / "texts", tokenizer=str(tmp_path / "no.json"))


def test_what_is_no_text_is_one_line(tmp_path):
    (tmp_path / "picture").write_bytes(b"abc\xff\xd8")
    with raises(InputError, "picture", "no text", "byte 3", "0xff", "UTF-8"):
        read(tmp_path)
    (tmp_path / "picture").write_bytes(b"abc\0")
    with raises(InputError, "picture", "no text", "zero byte at 3"):
        read(tmp_path)
    (tmp_path / "picture").write_text("short")
    with raises(InputError, "picture", "0 blocks", "128 tokens", "more text", "lower data.block"):
        read(tmp_path)
    (tmp_path / "picture").unlink()
    with raises(InputError, "no files"):
        read(tmp_path)
    with raises(InputError, "nowhere", "not a folder"):
        read(tmp_path / "nowhere")
    with raises(InputError, "train.task is 'regression'", "text"):
        read(texts(tmp_path, a="a" * 400), task="regression")
    with raises(InputError, "data.block is 8", "digits", "text:PATH and pydoc"):
        load_dataset("digits", files=FileSettings(block=8))


X = np.arange(40.0).reshape(20, 2)


def test_targets_of_floats_and_of_labels(tmp_path):
    data = hsfl.dataset(X, X.sum(axis=1), task="regression")
    assert (data.train_y.shape, data.train_y.dtype, data.num_classes) == ((16, 1), np.float32, 1)
    labels = hsfl.dataset(X, X > 10, task="multi_label", classes=["low", "high"], test_fraction=0.5)
    assert (labels.train_y.shape, labels.classes) == ((10, 2), ("low", "high"))
    assert [row.num_train + row.num_test for row in class_counts_of(labels)] == [14, 15]
    np.savez(tmp_path / "own.npz", x=X, y=X)
    assert load_dataset(f"npz:{tmp_path / 'own.npz'}", files=FileSettings(task="regression")).num_classes == 2
    rows = "\n".join(f"{a},{b},{a + b},{a > 9}" for a, b in X).replace("True", "1").replace("False", "0")
    (tmp_path / "own.csv").write_text(f"a,b,sum,large\n{rows}\n")
    files = FileSettings(task="regression", target_column=("sum", "large"))
    table = load_dataset(f"csv:{tmp_path / 'own.csv'}", files=files)
    assert (table.classes, table.train_x.shape[1]) == (("sum", "large"), 2)
    assert (table.train_x.sum(axis=1) == table.train_y[:, 0]).all()


def test_tokens_of_ones_own():
    ids = np.arange(24).reshape(6, 4)
    data = hsfl.dataset(ids, ids + 1, task="next_token")
    assert (data.num_classes, data.train_x.dtype) == (25, np.int64)
    some = hsfl.dataset(ids, [0, 1] * 3, tokens=True)
    assert (some.num_classes, some.vocabulary, some.task) == (2, 24, "classification")


@pytest.mark.parametrize(
    ("y", "how", "parts"),
    [
        (np.where(X[:, 0] == 6, np.nan, 1), {"task": "regression"}, ("y[3] is nan", "leave the sample out")),
        (np.ones((20, 2, 2)), {"task": "regression"}, ("y has shape", "(20, 2, 2)", "one number for each")),
        (np.ones(19), {"task": "regression"}, ("x has 20 samples", "y 19 labels")),
        (X, {"task": "multi_label"}, ("y[1, 0] is 2.0", "0 or 1")),
        (X[:, 0] > 3, {"task": "multi_label"}, ("y has shape (20,)", "0 or 1 for each")),
        (X > 3, {"task": "multi_label", "classes": ["one"]}, ("classes has 1 names", "y 2 columns")),
        (X[:, 0], {}, ("y.astype(int)", "set the task to regression")),
        (X > 3, {}, ("y has shape (20, 2)", "multi_label or regression")),
        (X, {"task": "next_token"}, ("x is a ndarray", "(20, 2) of float64", "that name tokens")),
        (np.ones(20, int), {"task": "regresion"}, ("task 'regresion'", "did you mean regression")),
    ],
)
def test_wrong_targets_are_one_line(y, how, parts):
    with raises(InputError, *parts) as error:
        hsfl.dataset(X, y, **how)
    assert "\n" not in str(error.value)


def test_wrong_tokens_are_one_line():
    ids = np.arange(24).reshape(6, 4)
    for x, y, how, parts in [
        (ids, ids[:, 1:], {}, ("y has shape (6, 3)", "token that follows", "(6, 4)")),
        (ids - 1, ids, {}, ("x[0, 0] is -1", "tokens are numbered")),
        (ids, ids, {"normalise": True}, ("x holds tokens", "no mean")),
    ]:
        with raises(InputError, *parts):
            hsfl.dataset(x, y, task="next_token", **how)


def test_every_sample_has_one_client_without_classes():
    data = hsfl.dataset(X, X[:, 0], task="regression")
    for kind in ("iid", "quantity_skew"):
        parts = partition(data.strata("train"), 3, kind, stream(0, "test"))
        assert sorted(np.concatenate(parts).tolist()) == list(range(16))
