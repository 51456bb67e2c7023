"""Your own images: a folder of class-named folders, with train/ and test/ above them or without."""

from pathlib import Path

import numpy as np
from PIL import Image

from hsfl.data.readers.reader_base import (
    Arrays,
    Request,
    Size,
    decode_image,
    divided,
    empty_images,
    held_out_groups,
    reading,
)
from hsfl.errors import InputError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
GREY_MODES = {"1", "L", "LA"}
COLOUR_MODES = {"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"}
WAY_OUT = "replace or remove it"


def read_image_folder(request: Request) -> Arrays:
    """Grey if every image is grey; all of one size: image_size, else the size of the first image."""
    root = request.folder()
    side_folders = [root / "train", root / "test"] if (root / "train").is_dir() and (root / "test").is_dir() else [root]
    classes = _class_names(side_folders[0])
    listed = [_images_of(side_folder, classes) for side_folder in side_folders]
    mode, first_size = _common_form([path for paths, _ in listed for path in paths])
    size = (request.image_size, request.image_size) if request.image_size else first_size
    (x, y), *test_side = [
        (_decoded(paths, mode, size, side_folder), labels) for (paths, labels), side_folder in zip(listed, side_folders)
    ]
    if test_side:
        return Arrays(x, y, *test_side[0], classes)
    return divided(x, y, held_out_groups(y, np.arange(len(y)), "folder"), classes)


def _class_names(folder: Path) -> tuple[str, ...]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        raise InputError(
            f"{folder} holds {len(names)} class folders; make one folder of images for each class, two at least"
        )
    return tuple(names)


def _images_of(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], np.ndarray]:
    """The image files below the class folders, in a fixed order, and their labels."""
    unknown = set(_class_names(folder)) - set(classes)
    if unknown:
        raise InputError(f"{folder / min(unknown)} has no such class folder in train/; add it there or remove it")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        class_paths = sorted(
            path for path in (folder / name).rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
        )
        if not class_paths:
            raise InputError(f"{folder / name} holds no images ({', '.join(sorted(SUFFIXES))}); add some or remove it")
        paths += class_paths
        labels += [label] * len(class_paths)
    return paths, np.array(labels, np.int64)


def _common_form(paths: list[Path]) -> tuple[str, Size]:
    """The mode that fits all images, from their headers, and the size of the first."""
    modes = set()
    sizes = []
    for path in paths:
        with reading(path, WAY_OUT), Image.open(path) as image:
            if image.mode not in GREY_MODES | COLOUR_MODES:
                raise InputError(f"{path} has pixels of type {image.mode}; convert it to 8 bits per channel")
            modes.add(image.mode)
            sizes.append(image.size)
    return "L" if modes <= GREY_MODES else "RGB", sizes[0]


def _decoded(paths: list[Path], mode: str, size: Size, folder: Path) -> np.ndarray:
    x = empty_images(len(paths), mode, size, folder)
    for index, path in enumerate(paths):
        with reading(path, WAY_OUT):
            x[index] = decode_image(path, mode, size)
    return x
