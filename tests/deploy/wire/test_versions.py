"""What a device may say of its versions, and what is said where they differ."""

from dataclasses import asdict

import pytest

from hsfl.deploy.wire.client_messages import OwnSpeeds, Ready
from hsfl.deploy.wire.frames import WireError
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.deploy.wire.server_messages import Standing
from hsfl.deploy.wire.versions import UNTOLD, DeviceVersions, own_versions, version_differences, version_notes
from tests.naming import names

OURS = DeviceVersions("0.1.0", "2.13.0+cpu", "3.12.4")
SPEEDS = OwnSpeeds(1e9, 1e6, 1e6, 1e6, 1e6, None)


def test_this_machine_tells_what_it_runs() -> None:
    assert all(asdict(own_versions()).values())
    message = Ready("f", [1], SPEEDS, None, own_versions())
    assert expect_message(pack_message(message), Ready)[0] == message


def test_an_older_device_or_edge_server_tells_nothing_and_is_let_in() -> None:
    """Its message has no such field."""
    for message in (Ready("f", [1], SPEEDS, None), Standing("i", "f", [], [])):
        content = pack_message(message)
        fields = content.replace(b',"versions":{"hsfl":"","torch":"","python":""}', b"")
        shorter = len(fields) - len(content)
        assert shorter < 0
        length = int.from_bytes(content[8:12], "little") + shorter
        assert expect_message(fields[:8] + length.to_bytes(4, "little") + fields[12:], type(message))[0] == message


@pytest.mark.parametrize("version", ["1" * 65, "2.0\n", "<b>", "2.0 of mine", "2.0\x1b[2J", "../../etc"])
def test_a_version_is_short_and_has_no_sign_that_means_something_elsewhere(version: str) -> None:
    with pytest.raises(WireError):
        expect_message(pack_message(Ready("f", [1], SPEEDS, None, DeviceVersions(torch=version))), Ready)


def test_differences_are_told_once_for_all_devices_that_share_them() -> None:
    other = DeviceVersions("0.1.0", "2.6.0", "3.12.4")
    assert version_differences(OURS, OURS) == {}
    assert version_differences(other, OURS) == {"torch": "2.6.0"}
    assert version_differences(UNTOLD, OURS) == dict.fromkeys(("hsfl", "torch", "python"), "unknown")
    devices = {f"ward-{k}": other for k in range(5)} | {"ward-9": OURS}
    (note,) = version_notes(devices, OURS)
    names(note, "torch is 2.6.0", "ward-0, ward-1, ward-2", "2 more", "2.13.0+cpu")
    assert "ward-9" not in note
