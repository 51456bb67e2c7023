"""The denylist: serials of revoked certificates, one to a line, reread by the servers while they run."""

import re
from collections.abc import Mapping
from pathlib import Path

from hsfl.errors import InputError
from hsfl.files import stamp, write_atomic

ENTRY = re.compile(r"([0-9a-f]{1,40})(?:\s+([a-z0-9._-]{1,63}))?")
MOST_BYTES = 8 * 1024 * 1024
HEAD = "# Serials of revoked certificates, written by hsfl certs revoke. Servers reread this file while they run.\n"


def read_denylist(path: Path) -> dict[int, str]:
    """The revoked serials, each with the name in its certificate ("" if the file does not say). A list that cannot be
    read whole is an error: a part of it would let revoked devices in."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is larger than {MOST_BYTES} bytes and no denylist; put the denylist there")
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        raise InputError(
            f"{path} is missing; copy the server's bundle with it (an empty file revokes nobody)"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text of serials; put the denylist that hsfl certs revoke wrote there") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); let the user who runs hsfl read it") from None
    serials: dict[int, str] = {}
    for number, text in enumerate(lines, start=1):
        if not (entry := text.partition("#")[0].strip()):
            continue
        if (match := ENTRY.fullmatch(entry)) is None:
            raise InputError(f"{path} line {number} is {entry[:60]!a}, which is no serial in hex; mend or remove it")
        serials[int(match[1], 16)] = match[2] or ""
    return serials


def write_denylist(path: Path, serials: Mapping[int, str]) -> None:
    """Write a denylist, whole or not at all. serials: each with the name in its certificate."""
    text = HEAD + "".join(f"{serial:x} {name}\n" for serial, name in serials.items())
    write_atomic(path, lambda scratch: scratch.write_text(text), durable=True)


class Denylist:
    """A denylist that is read again when its file changes. A list that turns unreadable while a server runs changes nothing:
    who was revoked stays revoked, and `problem` says what is wrong with the file."""

    def __init__(self, path: Path) -> None:
        self._path, self._seen_stamp = path, stamp(path)
        self._serials = read_denylist(path)  # at the start an unreadable list is an error
        self.problem: str | None = None

    def reread(self) -> bool:
        """Look at the file; returns whether the list changed."""
        if (file_stamp := stamp(self._path)) == self._seen_stamp:
            return False
        self._seen_stamp = file_stamp
        before = self._serials
        try:
            self._serials, self.problem = read_denylist(self._path), None
        except InputError as error:
            self.problem = str(error).replace(str(self._path), self._path.name)  # for a log, which names no folders
        return before.keys() != self._serials.keys()

    def __contains__(self, serial: int) -> bool:
        return serial in self._serials
