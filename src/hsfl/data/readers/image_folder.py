"""Your own images: a folder of class-named folders, with train/ and test/ above them or without."""

from pathlib import Path

import numpy as np
from PIL import Image

from hsfl.data.readers.reader import Arrays, Request, Size, decode, divided, empty, held_out_groups, reading
from hsfl.errors import InputError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
GREY_MODES = {"1", "L", "LA"}
COLOUR_MODES = {"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"}
WAY_OUT = "replace or remove it"


def read_image_folder(request: Request) -> Arrays:
    """Grey if every image is grey; all of one size: image_size, else the size of the first image."""
    root = request.folder()
    parts = [root / "train", root / "test"] if (root / "train").is_dir() and (root / "test").is_dir() else [root]
    classes = _class_names(parts[0])
    listed = [_images_of(part, classes) for part in parts]
    mode, first_size = _common_form([path for paths, _ in listed for path in paths])
    size = (request.image_size, request.image_size) if request.image_size else first_size
    (x, y), *rest = [(_decoded(paths, mode, size, part), labels) for (paths, labels), part in zip(listed, parts)]
    if rest:
        return Arrays(x, y, *rest[0], classes)
    return divided(x, y, held_out_groups(y, np.arange(len(y)), "folder"), classes)


def _class_names(part: Path) -> tuple[str, ...]:
    names = sorted(path.name for path in part.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        raise InputError(
            f"{part} holds {len(names)} class folders; make one folder of images for each class, two at least"
        )
    return tuple(names)


def _images_of(part: Path, classes: tuple[str, ...]) -> tuple[list[Path], np.ndarray]:
    """The image files below the class folders, in a fixed order, and their labels."""
    unknown = set(_class_names(part)) - set(classes)
    if unknown:
        raise InputError(f"{part / min(unknown)} has no such class folder in train/; add it there or remove it")
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(path for path in (part / name).rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        if not found:
            raise InputError(f"{part / name} holds no images ({', '.join(sorted(SUFFIXES))}); add some or remove it")
        paths += found
        labels += [label] * len(found)
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


def _decoded(paths: list[Path], mode: str, size: Size, part: Path) -> np.ndarray:
    x = empty(len(paths), mode, size, part)
    for index, path in enumerate(paths):
        with reading(path, WAY_OUT):
            x[index] = decode(path, mode, size)
    return x
