"""Downloads: every file is checked against a known sum before it gets its name, so nothing is ever half-written."""

import logging
import os
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsfl.data.readers.reader_base import reading
from hsfl.data.registry import READERS, find_data_dir
from hsfl.errors import InputError, known_name

TIMEOUT_S = 30
CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class Source:
    """Where a set comes from, and where its reader expects it."""

    base_url: str
    folder: str  # within the data directory
    files: dict[str, str]  # name -> sha256
    archive: tuple[str, str] | None = None  # a tar that holds folder/name for each file; its name and sum


SOURCES: dict[str, Source] = {
    "mnist": Source(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "MNIST/raw",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz/",
        "cifar-10-batches-py",
        {
            "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
            "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
            "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
            "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
            "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
            "test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
            "batches.meta": "f962466ef690d46b226450fb9aadc74ba4bc64a76aa526b5827fe4bc5c7125cb",
        },
        archive=("cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
    ),
}


def fetch(
    name: str, data_dir: str | Path | None = None, base_url: str | None = None, progress: Any | None = None
) -> Path:
    """Download a set into the data directory unless it is there already, and return its folder.

    `progress` is what pooch takes: an object with `total`, `update(num_bytes)`, `reset()` and `close()`.
    """
    root = find_data_dir(data_dir)
    if name not in SOURCES:
        raise _not_fetchable(name, root)
    source = SOURCES[name]
    folder = root / source.folder
    lacking = [file for file, sha256 in source.files.items() if not _is_whole(folder / file, sha256)]
    if not lacking:
        return folder
    with _scratch_in(folder) as scratch:
        _download_all(source, lacking, Path(scratch), base_url or source.base_url, progress)
        for file in lacking:
            os.replace(Path(scratch) / file, folder / file)
    return folder


def _scratch_in(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A place on the same disk, so that a finished file only has to be renamed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-")
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written ({error.strerror}); name a folder you may write with --data-dir or HSFL_DATA"
        ) from error


def _download_all(source: Source, files: list[str], scratch: Path, base_url: str, progress: Any) -> None:
    """Put the files into scratch, checked."""
    if source.archive is None:
        for file in files:
            _download(base_url, file, source.files[file], scratch, progress)
        return
    archive, known_sum = source.archive
    _download(base_url, archive, known_sum, scratch, progress)
    with reading(Path(archive), "try again"), tarfile.open(scratch / archive) as tar:
        for file in files:
            _unpack(tar, f"{source.folder}/{file}", scratch / file)
            if not _is_whole(scratch / file, source.files[file]):
                raise InputError(f"{file} in {archive} does not have its known sum; try again, or another mirror")


def _download(base_url: str, file: str, known_sum: str, scratch: Path, progress: Any) -> None:
    import pooch  # here, because it costs a tenth of a second
    import requests

    url = f"{base_url.rstrip('/')}/{file}"
    pooch.get_logger().setLevel(logging.WARNING)
    downloader = pooch.HTTPDownloader(progressbar=progress or False, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_S)
    try:
        pooch.retrieve(url, known_sum, fname=file, path=scratch, downloader=downloader)
        (scratch / file).chmod(0o644)  # pooch leaves it private
    except requests.exceptions.RequestException as error:
        raise InputError(f"{url} cannot be downloaded ({_reason(error)}); check the network and try again") from error
    except ValueError as error:
        raise InputError(f"{url} does not have its known sum; try again, or another mirror") from error
    except OSError as error:
        raise InputError(
            f"{scratch.parent} cannot be written ({error.strerror}); make room or choose another"
        ) from error


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    return type(error).__name__ if response is None else f"HTTP status {response.status_code}"


def _unpack(tar: tarfile.TarFile, member: str, target: Path) -> None:
    """Copy one expected member to a path of ours; names, links and modes within the archive have no say."""
    info = tar.getmember(member)
    content = tar.extractfile(info) if info.isreg() else None
    if content is None:
        raise InputError(f"{member} in the archive is not a plain file; try another mirror")
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file, CHUNK_BYTES)


def _is_whole(path: Path, sha256: str) -> bool:
    if not path.is_file():
        return False
    import pooch

    return bool(pooch.file_hash(str(path), alg="sha256") == sha256)


def _not_fetchable(name: str, root: Path) -> InputError:
    if name == "ham10000":
        return InputError(
            "ham10000 cannot be fetched without an account: get it from https://doi.org/10.7910/DVN/DBW86T and put "
            "HAM10000_images_part_1/, HAM10000_images_part_2/ and HAM10000_metadata.csv "
            f"(or ham10000_64.npz) into {root / 'ham10000'}"
        )
    if name == "digits":
        return InputError("digits needs no download, it comes with scikit-learn: pip install scikit-learn")
    known_name("data set", name.partition(":")[0], READERS)
    return InputError(f"'{name}' is read where it lies and cannot be fetched; choose one of {', '.join(SOURCES)}")
