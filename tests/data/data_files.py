"""Small files in the formats of the real data sets."""

import csv
import gzip
import io
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")


def idx_bytes(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_idx(path: Path, values: np.ndarray) -> None:
    """Packed if the name says so."""
    raw = idx_bytes(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def write_mnist(folder: Path, num_train: int = 40, num_test: int = 20, suffix: str = "-ubyte.gz") -> None:
    """Random images whose labels run 0..9 over and over."""
    rng = np.random.default_rng(0)
    for part, count in (("train", num_train), ("t10k", num_test)):
        write_idx(folder / f"{part}-images-idx3{suffix}", rng.integers(0, 256, (count, 28, 28)))
        write_idx(folder / f"{part}-labels-idx1{suffix}", np.arange(count) % 10)


def cifar_batch(num_images: int = 10, **changes: object) -> dict[bytes, object]:
    rng = np.random.default_rng(num_images)
    batch: dict[bytes, object] = {
        b"batch_label": b"batch",
        b"labels": [index % 10 for index in range(num_images)],
        b"data": rng.integers(0, 256, (num_images, 3072)).astype(np.uint8),
    }
    return batch | {key.encode(): value for key, value in changes.items()}


def write_cifar(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        (folder / file).write_bytes(pickle.dumps(cifar_batch(), protocol=4))


def jpeg(colour: tuple[int, int, int], size: tuple[int, int] = (64, 64)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def lesion_table(images_per_class: int = 12) -> list[tuple[str, str, str]]:
    """(image, lesion, class); two images per lesion."""
    rows = []
    for index in range(images_per_class * len(CLASSES)):
        rows.append((f"ISIC_{index:07d}", f"HAM_{index // 2:07d}", CLASSES[index // images_per_class]))
    return rows


def write_ham_npz(path: Path, **changes: np.ndarray) -> None:
    rows = lesion_table()
    files = [jpeg((index, 100, 200)) for index in range(len(rows))]
    arrays = {
        "jpeg": np.frombuffer(b"".join(files), np.uint8),
        "offsets": np.cumsum([0] + [len(file) for file in files]),
        "labels": np.array([CLASSES.index(row[2]) for row in rows], np.uint8),
        "classes": np.array(CLASSES),
        "image_id": np.array([row[0] for row in rows]),
        "lesion_id": np.array([row[1] for row in rows]),
        "is_test": np.arange(len(rows)) % 12 < 2,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **(arrays | changes))


def write_ham_original(folder: Path, size: tuple[int, int] = (60, 45)) -> None:
    rows = lesion_table()
    for part in (1, 2):
        (folder / f"HAM10000_images_part_{part}").mkdir(parents=True)
    for index, row in enumerate(rows):
        place = folder / f"HAM10000_images_part_{1 + index % 2}"
        (place / f"{row[0]}.jpg").write_bytes(jpeg((index, 100, 200), size))
    with (folder / "HAM10000_metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"])
        writer.writerows([lesion, image, diagnosis, "histo", 80, "male", "scalp"] for image, lesion, diagnosis in rows)


def write_picture(path: Path, value: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value,) * 3 if mode == "RGB" else value).save(path)
