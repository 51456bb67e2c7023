"""DeviceVersions of hsfl, torch and Python: every device tells its own when it joins, so that an operator sees where they differ.

Other versions are no reason to refuse a device, as messages and models are checked by themselves; but the last digits of its numbers may
be others, and a replay of the run may not agree to the bit.
"""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from typing import Annotated, Any

from pydantic import Field

from hsfl.deploy.wire.message_fields import strict

Version = Annotated[str, Field(max_length=64, pattern=r"^[0-9A-Za-z.+!_-]*$")]  # goes into logs, status and pages
SHOWN_NAMES = 3  # of devices with one version; more of them are counted


@strict
@dataclass(frozen=True)
class DeviceVersions:
    """What a machine runs. An empty text is not known: an older hsfl tells nothing."""

    hsfl: Version = ""
    torch: Version = ""
    python: Version = ""


UNTOLD = DeviceVersions()


@cache
def own_versions() -> DeviceVersions:
    """The versions of this process."""
    return DeviceVersions(metadata.version("hsfl"), metadata.version("torch"), platform.python_version())


def version_differences(theirs: DeviceVersions, ours: DeviceVersions) -> dict[str, Any]:
    """What a device runs in another version than this machine, by the program's name; `unknown` where it did not say."""
    pairs = zip(asdict(theirs).items(), asdict(ours).values())
    return {
        name: their_version or "unknown" for (name, their_version), our_version in pairs if their_version != our_version
    }


def version_notes(devices: Mapping[str, DeviceVersions], ours: DeviceVersions) -> list[str]:
    """A sentence for each version that some devices have and the main server has not. devices: versions by the device's name."""
    owners: dict[tuple[str, str], list[str]] = {}
    for device, theirs in devices.items():
        for program, version in version_differences(theirs, ours).items():
            owners.setdefault((program, version), []).append(device)
    return [
        f"{program} is {version} on {_few(names)} and {asdict(ours)[program]} on the main server, so last digits may differ"
        for (program, version), names in sorted(owners.items())
    ]


def _few(names: list[str]) -> str:
    shown, more = ", ".join(names[:SHOWN_NAMES]), len(names) - SHOWN_NAMES
    return shown if more <= 0 else f"{shown} and {more} more"
