"""HAM10000 in both layouts: lesions never lie on both sides, damage is named."""

from pathlib import Path

import numpy as np
import pytest

from hsfl.data.registry import Dataset, class_counts_of, load_dataset
from hsfl.errors import InputError
from tests.data.data_files import jpeg, lesion_table, write_ham_npz, write_ham_original
from tests.naming import raises


def lesions(x: np.ndarray) -> set[int]:
    """The made images carry their number in the red channel, and lesion = number // 2."""
    return set(np.rint(x[:, 0].mean(axis=(1, 2)) / 2 - 0.25).astype(int).tolist())


def check_split(dataset: Dataset) -> None:
    assert len(dataset.train_y) + len(dataset.test_y) == len(lesion_table())
    assert all(row.num_test >= 2 and row.num_train > row.num_test for row in class_counts_of(dataset))


def test_npz_uses_its_own_split(tmp_path: Path) -> None:
    write_ham_npz(tmp_path / "ham10000" / "ham10000_64.npz")
    ham = load_dataset("ham10000", tmp_path)
    assert ham.image_shape == (3, 64, 64)
    assert [row.num_test for row in class_counts_of(ham)] == [2] * 7
    assert load_dataset("ham10000", tmp_path / "ham10000", image_size=32).image_shape == (3, 32, 32)


@pytest.mark.parametrize("place", ["ham10000", "HAM10000", ""])
def test_original_layout_is_split_by_lesion(place: str, tmp_path: Path) -> None:
    write_ham_original(tmp_path / place)
    ham = load_dataset("ham10000", tmp_path)
    check_split(ham)
    assert ham.image_shape == (3, 64, 64)
    assert ham.classes == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert not lesions(ham.train_x) & lesions(ham.test_x)
    assert np.array_equal(ham.test_x, load_dataset("ham10000", tmp_path, rng=np.random.default_rng(5)).test_x)


def test_split_by_image_is_a_choice_and_leaks(tmp_path: Path) -> None:
    write_ham_original(tmp_path / "folders")
    write_ham_npz(tmp_path / "npz" / "ham10000_64.npz")
    for place in ("folders", "npz"):
        ham = load_dataset("ham10000", tmp_path / place, split="image")
        check_split(ham)
        assert lesions(ham.train_x) & lesions(ham.test_x)


def test_variants_of_the_original_layout(tmp_path: Path) -> None:
    """One folder of images; the metadata as Dataverse names and separates it; images that nobody lists."""
    write_ham_original(tmp_path)
    reference = load_dataset("ham10000", tmp_path)
    (tmp_path / "images").mkdir()
    for part in (1, 2):
        for path in (tmp_path / f"HAM10000_images_part_{part}").iterdir():
            path.rename(tmp_path / "images" / path.name)
    (tmp_path / "images" / "ISIC_9999999.jpg").write_bytes(b"not listed, not read")
    table = tmp_path / "HAM10000_metadata.csv"
    (tmp_path / "HAM10000_metadata.tab").write_text(table.read_text().replace(",", "\t"))
    table.unlink()
    assert np.array_equal(load_dataset("ham10000", tmp_path).test_x, reference.test_x)


def test_large_jpegs_are_resized_well(tmp_path: Path) -> None:
    write_ham_original(tmp_path, size=(600, 450))
    x = load_dataset("ham10000", tmp_path, image_size=32).train_x
    assert x.shape[1:] == (3, 32, 32)
    assert np.ptp(x, axis=(2, 3)).max() <= 2  # one colour stays one colour


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"labels": np.full(84, 7, np.uint8)}, ("label 7", "0..6")),
        ({"labels": np.zeros(83, np.uint8)}, ("83 labels for 84 images",)),
        ({"labels": np.full(84, 0.5)}, ("cannot be read", "float64")),
        ({"is_test": np.zeros(83, bool)}, ("83] rows", "84 images")),
        ({"is_test": np.arange(84) % 2 == 0}, ("lesions", "train and test", "is_test leaks")),
        ({"offsets": np.arange(85)}, ("offsets", "do not divide")),
        ({"image_id": np.array([None] * 84, object)}, ("cannot be read", "allow_pickle")),
    ],
)
def test_damaged_arrays(changes: dict, parts: tuple[str, ...], tmp_path: Path) -> None:
    write_ham_npz(tmp_path / "ham10000_64.npz", **changes)
    with raises(InputError, "ham10000_64.npz", *parts) as caught:
        load_dataset("ham10000", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_broken_jpeg_inside_the_npz_is_named(tmp_path: Path) -> None:
    files = [jpeg((index, 100, 200)) for index in range(84)]
    files[5] = files[5][: len(files[5]) // 2]
    raw = np.frombuffer(b"".join(files), np.uint8)
    write_ham_npz(tmp_path / "ham10000_64.npz", jpeg=raw, offsets=np.cumsum([0] + [len(file) for file in files]))
    with raises(InputError, "ham10000_64.npz/ISIC_0000005", "Truncated"):
        load_dataset("ham10000", tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", b"\x80\x04K\x01."])
def test_an_npz_that_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "ham10000_64.npz").write_bytes(content)
    with raises(InputError, "ham10000_64.npz", "read"):
        load_dataset("ham10000", tmp_path)


def test_a_truncated_npz(tmp_path: Path) -> None:
    write_ham_npz(tmp_path / "ham10000_64.npz")
    whole = (tmp_path / "ham10000_64.npz").read_bytes()
    (tmp_path / "ham10000_64.npz").write_bytes(whole[: len(whole) // 2])
    with raises(InputError, "ham10000_64.npz", "read"):
        load_dataset("ham10000", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("dx,", "diagnosis,", ("KeyError: 'dx'",)),
        (",vasc,", ",wart,", ("unknown diagnoses ['wart']",)),
        ("ISIC_0000003", "ISIC_7777777", ("names ISIC_7777777", "0 more", "without a file")),
    ],
)
def test_damaged_metadata(old: str, new: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    write_ham_original(tmp_path)
    table = tmp_path / "HAM10000_metadata.csv"
    table.write_text(table.read_text().replace(old, new))
    with raises(InputError, "HAM10000_metadata.csv", *parts):
        load_dataset("ham10000", tmp_path)


def test_metadata_cut_short_or_binary(tmp_path: Path) -> None:
    write_ham_original(tmp_path)
    table = tmp_path / "HAM10000_metadata.csv"
    table.write_text(table.read_text()[:-45])
    with pytest.raises(InputError, match=r"HAM10000_metadata.csv"):
        load_dataset("ham10000", tmp_path)
    table.write_bytes(b"\xff\xfe\x00")
    with raises(InputError, "HAM10000_metadata.csv", "read"):
        load_dataset("ham10000", tmp_path)


def test_a_broken_jpeg_in_a_folder_is_named(tmp_path: Path) -> None:
    write_ham_original(tmp_path)
    broken = tmp_path / "HAM10000_images_part_1" / "ISIC_0000004.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    with raises(InputError, "ISIC_0000004.jpg", "read"):
        load_dataset("ham10000", tmp_path)
