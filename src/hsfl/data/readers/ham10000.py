"""HAM10000, dermatoscopic images of pigmented skin lesions (Tschandl, Rosendahl, Kittler, Scientific Data 5, 2018).

Two layouts, in ham10000/, HAM10000/ or the data directory itself: one file ham10000_64.npz of small JPEGs, which wins
if it is there, or the folders of the original (HAM10000_images_part_1 and _2) with HAM10000_metadata.csv.
The 10015 images show 7470 lesions, so test images are whole lesions; `split = "image"` ignores that, and leaks.
"""

import csv
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from hsfl.data.readers.reader_base import (
    Arrays,
    Request,
    check_labels,
    decode_image,
    divided,
    empty_images,
    held_out_groups,
    reading,
)
from hsfl.errors import DataMissing, InputError
from hsfl.files import check_unpacked

CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
DOI = "doi:10.7910/DVN/DBW86T"
WAY_OUT = f"replace it by a whole copy ({DOI})"
NPZ_FILE = "ham10000_64.npz"
NPZ_ARRAYS = ("jpeg", "offsets", "labels", "classes", "image_id", "lesion_id", "is_test")
METADATA_FILES = ("HAM10000_metadata.csv", "HAM10000_metadata", "HAM10000_metadata.tab")
IMAGE_FOLDERS = {"ham10000_images_part_1", "ham10000_images_part_2", "ham10000_images", "images"}
IMAGE_SIZE = 64
MOST_BYTES = 4 * 2**30  # of the arrays in the file


def read_ham10000(request: Request) -> Arrays:
    """HAM10000 in whichever layout is there."""
    places = [request.data_dir / "ham10000", request.data_dir / "HAM10000", request.data_dir]
    for place in places:
        if (place / NPZ_FILE).is_file():
            return _read_npz(place / NPZ_FILE, request)
    for place in places:
        metadata = next((place / file for file in METADATA_FILES if (place / file).is_file()), None)
        if metadata is not None:
            return _read_original(metadata, request)
    raise DataMissing(
        f"ham10000: neither {NPZ_FILE} nor {METADATA_FILES[0]} in {places[0]}; `hsfl data fetch ham10000` says where "
        "to get it, or name the folder that has it with --data-dir or HSFL_DATA"
    )


def _read_npz(path: Path, request: Request) -> Arrays:
    about = path.stat()
    return _unpacked(path, (about.st_mtime_ns, about.st_size), request.image_size or IMAGE_SIZE, request.split)


@lru_cache(maxsize=1)
def _unpacked(path: Path, stamp: tuple[int, int], size: int, split: str) -> Arrays:
    """The arrays of the file. Decoding takes seconds, and a study reads the same file for every training, so the last
    arrays are kept; `stamp` changes when the file does."""
    with reading(path, WAY_OUT):
        check_unpacked(path, MOST_BYTES)
    with reading(path, WAY_OUT), path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        jpeg, offsets, labels, classes, image_id, lesion_id, is_test = (stored[name] for name in NPZ_ARRAYS)
        raw = jpeg.astype(np.uint8, casting="safe").tobytes()
        labels, is_test = labels.astype(np.int64, casting="safe"), is_test.astype(bool, casting="safe")
        bounds = offsets.astype(np.int64, casting="safe").tolist()
    _check_npz(path, len(raw), bounds, image_id, lesion_id, is_test)
    check_labels(path, labels, len(bounds) - 1, len(classes), WAY_OUT)
    x = empty_images(len(labels), "RGB", (size, size), path)
    for index, (start, stop) in enumerate(pairwise(bounds)):
        with reading(path / str(image_id[index]), WAY_OUT):
            x[index] = decode_image(raw[start:stop], "RGB", (size, size))
    if split == "image":
        is_test = held_out_groups(labels, np.arange(len(labels)), "ham10000")
    elif set(lesion_id[is_test]) & set(lesion_id[~is_test]):
        raise InputError(f"{path} has lesions both in train and test, so is_test leaks; {WAY_OUT}")
    return divided(x, labels, is_test, tuple(str(name) for name in classes))


def _check_npz(path: Path, num_bytes: int, bounds: list[int], *columns: np.ndarray) -> None:
    num_images = len(bounds) - 1
    if any(column.shape != (num_images,) for column in columns):
        raise InputError(
            f"{path} has columns of {[len(column) for column in columns]} rows for {num_images} images; {WAY_OUT}"
        )
    if not bounds or bounds[0] != 0 or bounds[-1] != num_bytes or bounds != sorted(bounds):
        raise InputError(f"{path} has offsets that do not divide its {num_bytes} bytes into images; {WAY_OUT}")


def _read_original(metadata: Path, request: Request) -> Arrays:
    image_ids, lesions, labels = _read_metadata(metadata)
    files = _image_files(metadata.parent)
    absent = [image_id for image_id in image_ids if image_id not in files]
    if absent:
        raise InputError(
            f"{metadata} names {absent[0]} and {len(absent) - 1} more without a file {absent[0]}.jpg in "
            f"HAM10000_images_part_1 or _2 beside it; unpack both parts of {DOI} there"
        )
    size = request.image_size or IMAGE_SIZE
    x = empty_images(len(image_ids), "RGB", (size, size), metadata.parent)
    for index, image_id in enumerate(image_ids):
        with reading(files[image_id], WAY_OUT):
            x[index] = decode_image(files[image_id], "RGB", (size, size))
    groups = lesions if request.split == "lesion" else np.arange(len(labels))
    return divided(x, labels, held_out_groups(labels, groups, "ham10000"), CLASSES)


def _read_metadata(path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Image names, lesion names [n] and labels [n]."""
    with reading(path, WAY_OUT), path.open(newline="", encoding="utf-8-sig") as file:
        delimiter = "\t" if "\t" in file.readline() else ","
        file.seek(0)
        rows = list(csv.DictReader(file, delimiter=delimiter))
        columns = [[row[name].strip() for row in rows] for name in ("image_id", "lesion_id", "dx")]
    image_ids, lesions, diagnoses = columns
    unknown = sorted(set(diagnoses) - set(CLASSES))
    if unknown or not rows:
        raise InputError(f"{path} has {len(rows)} rows and unknown diagnoses {unknown[:3]}; {WAY_OUT}")
    return image_ids, np.array(lesions), np.array([CLASSES.index(name) for name in diagnoses], np.int64)


def _image_files(folder: Path) -> dict[str, Path]:
    """The JPEG of each image name."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and path.name.lower() in IMAGE_FOLDERS)
    return {path.stem: path for place in folders for path in sorted(place.glob("*.[jJ][pP][gG]")) if path.is_file()}
