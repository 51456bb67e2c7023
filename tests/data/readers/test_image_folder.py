"""Folders of class-named folders."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hsfl.data.readers import reader_base
from hsfl.data.registry import class_counts_of, load_dataset
from hsfl.errors import InputError
from tests.data.data_files import write_picture
from tests.naming import raises


def write_animals(root: Path, num_images: int = 10, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> None:
    for shade, name in ((50, "cat"), (150, "dog")):
        for index in range(num_images):
            write_picture(root / name / f"{index:02d}.png", shade + index, size, mode)


def test_one_level_is_split_by_class_the_same_each_time(tmp_path: Path) -> None:
    write_animals(tmp_path)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    animals = load_dataset(f"folder:{tmp_path}")
    assert [tuple(row) for row in class_counts_of(animals)] == [("cat", 8, 2), ("dog", 8, 2)]
    assert (animals.train_x[:, 0, 0, 0] >= 150).astype(int).tolist() == animals.train_y.tolist()
    assert np.array_equal(animals.test_x, load_dataset(f"folder:{tmp_path}", rng=np.random.default_rng(3)).test_x)
    assert np.array_equal(animals.test_x, load_dataset(f"folder:{tmp_path.name}", tmp_path.parent).test_x)


def test_train_and_test_folders_are_kept(tmp_path: Path) -> None:
    write_animals(tmp_path / "train", 6)
    write_animals(tmp_path / "test", 3)
    assert [tuple(row) for row in class_counts_of(load_dataset(f"folder:{tmp_path}"))] == [("cat", 6, 3), ("dog", 6, 3)]


def test_sizes_and_colours_are_made_equal(tmp_path: Path) -> None:
    write_animals(tmp_path, size=(6, 4), mode="L")
    write_picture(tmp_path / "dog" / "large.png", 99, (20, 30), "L")
    assert load_dataset(f"folder:{tmp_path}").image_shape == (1, 4, 6)  # as the first image
    assert load_dataset(f"folder:{tmp_path}", image_size=5).image_shape == (1, 5, 5)
    write_picture(tmp_path / "dog" / "colour.png", 99)
    assert load_dataset(f"folder:{tmp_path}").image_shape == (3, 4, 6)  # one colour image makes the set a colour set


def test_bad_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(InputError, "0 class folders"):
        load_dataset(f"folder:{tmp_path}")
    write_animals(tmp_path / "a")
    (tmp_path / "a" / "horse").mkdir()
    with raises(InputError, "horse", "no images"):
        load_dataset(f"folder:{tmp_path / 'a'}")
    write_animals(tmp_path / "b" / "train")
    write_animals(tmp_path / "b" / "test")
    write_picture(tmp_path / "b" / "test" / "horse" / "0.png", 1)
    with raises(InputError, "horse", "class folder", "train/"):
        load_dataset(f"folder:{tmp_path / 'b'}")
    write_animals(tmp_path / "c")
    monkeypatch.setattr(reader_base, "MAX_BYTES", 1000)
    with raises(InputError, "data.image_size", "smaller"):
        load_dataset(f"folder:{tmp_path / 'c'}")


@pytest.mark.parametrize("keep", [0, 20, 50])
def test_broken_pictures_are_named(keep: int, tmp_path: Path) -> None:
    write_animals(tmp_path)
    broken = tmp_path / "dog" / "03.png"
    broken.write_bytes(broken.read_bytes()[:keep])
    with raises(InputError, "03.png", "read") as caught:
        load_dataset(f"folder:{tmp_path}")
    assert "\n" not in str(caught.value)


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    write_animals(tmp_path)
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "dog" / "deep.png")
    with raises(InputError, "deep.png", "I;16"):
        load_dataset(f"folder:{tmp_path}")
