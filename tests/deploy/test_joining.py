"""A client on its way in: who is away, what is wrong, and what the operator hears of it."""

import asyncio
import io
import json
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from hsfl.commands.serve import _say_end
from hsfl.deploy import client as client_module
from hsfl.deploy.client import ClientProcess, JoinFailed
from hsfl.deploy.logs import open_log, scrubbed
from hsfl.deploy.main.edge_link import EdgeLink, EdgeLost
from hsfl.deploy.processes import run_client
from hsfl.deploy.settings import ClientSettings, MainSettings, read_settings, run_config
from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.wire.client_messages import Hello, Welcome
from hsfl.deploy.wire.link_probe import LinkSpeed
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.deploy.wire.server_messages import Standing
from hsfl.deploy.wire.transport import TAKEN, Backoff
from hsfl.errors import InputError
from hsfl.runs.client_data import read_data
from tests.deploy.fleet import RUN, changed
from tests.deploy.inside import Inside
from tests.deploy.kits import small_kit
from tests.naming import names, raises
from tests.small_runs import hsfl

ONE_ROUND = changed(RUN, train={"rounds": 1})
RUN_NAME = "0" * 16


def quiet() -> io.StringIO:
    return io.StringIO()


def device(certs: Path | None = None, stream: io.StringIO | None = None) -> ClientProcess:
    return ClientProcess(ClientSettings(name="ward-1"), certs, open_log("ward-1", True, stream or quiet()))


def test_a_client_that_cannot_read_its_data_says_why_and_leaves_its_seat(tmp_path: Path) -> None:
    """The operator hears it, without the device's paths; the next device takes the seat."""
    inside, words = Inside(tmp_path, ONE_ROUND, more={"clients": ()}), list[str]()

    async def lost() -> None:
        missing = {"name": f"npz:{tmp_path / 'none.npz'}"}
        settings = inside.client_settings("di").model_copy(update={"name": "lost", "data": missing})
        try:
            await run_client(settings, True, inside.log("lost"))
        except InputError as error:
            words.append(str(error))

    async def last() -> str:
        while not words:
            await asyncio.sleep(0.05)
        return await inside.client("di")

    assert inside.go(lost, last, honest=("ada", "bo", "cy")).status == "finished"
    assert "none.npz" in words[0]
    (line,) = [line for line in inside.events("main") if line["event"] == "client left before it was ready"]
    assert line["client"] == "lost"
    assert "(path)" in line["why"]
    assert str(tmp_path) not in json.dumps(line)
    assert sorted(json.loads((tmp_path / "run" / "seats.json").read_text())["names"]) == ["ada", "bo", "cy", "di"]


@pytest.mark.parametrize(
    ("code", "kind", "parts"),
    [
        ("UNAVAILABLE", JoinFailed, ("edge server is away", "trying again")),
        ("RESOURCE_EXHAUSTED", JoinFailed, ("edge server", "no more of ward-1", "trying again")),
        (
            "RESOURCE_EXHAUSTED: larger than max",
            JoinFailed,
            ("edge server", "longer message than ward-1", "trying again"),
        ),
        ("PERMISSION_DENIED", InputError, ("edge server", "refuses ward-1: no")),
    ],
)
def test_a_client_says_which_server_is_away(
    monkeypatch: pytest.MonkeyPatch, code: str, kind: type[Exception], parts: tuple[str, ...]
) -> None:
    async def measure_link(peer: str) -> LinkSpeed:
        if peer == "edge":
            name, _, details = code.partition(": ")
            raise ended_with(grpc.StatusCode[name], details or "no")
        return LinkSpeed(1e9, 1e9, 0.0)

    monkeypatch.setattr(client_module, "measure_link", measure_link)
    made = device()
    made.channels = SimpleNamespace(main="main", edge="edge")
    with raises(kind, *parts):
        asyncio.run(made._measure(SimpleNamespace()))


def welcomed(monkeypatch: pytest.MonkeyPatch, welcome: Welcome, before: Welcome | None = None) -> ClientProcess:
    """A device that hears this Welcome, and goes no further than to its measurement. before: for which it was prepared, and joined."""

    class Call:
        async def write(self, message: bytes) -> None:
            expect_message(message, Hello)

        async def read(self) -> bytes:
            return pack_message(welcome)

    async def prepare(call: Call, welcome: Welcome) -> SimpleNamespace:
        return SimpleNamespace(seat=welcome.seat, settings=welcome.settings)

    async def measure(own: SimpleNamespace) -> None:
        raise JoinFailed("far enough", "")

    made = device()
    if before is not None:
        made.setup, made.welcome, made.joined = asyncio.run(prepare(Call(), before)), before, True
    main = SimpleNamespace(stream=lambda name: Call())
    monkeypatch.setattr(made, "_open_channels", lambda: SimpleNamespace(main=main))
    monkeypatch.setattr(made, "_prepare", prepare)
    monkeypatch.setattr(made, "_measure", measure)
    return made


@pytest.mark.parametrize("joined", [False, True])
def test_another_seat_is_taken_until_the_client_has_joined(monkeypatch: pytest.MonkeyPatch, joined: bool) -> None:
    """Its batches follow from the seat, so that the data are made ready again; later, another seat is another run's."""
    made = welcomed(monkeypatch, Welcome(1, "{}", [1], 2, False), Welcome(0, "{}", [1], 2, False))
    made.joined = joined
    kind, part = (InputError, "another seat") if joined else (JoinFailed, "far enough")
    with raises(kind, part):
        asyncio.run(made._attend_once(Backoff()))
    assert made.setup.seat == (0 if joined else 1)


@pytest.mark.parametrize("settings", ["{}", '{"seed": 1}'])
def test_a_device_prepares_anew_for_another_run_at_the_same_seat(
    monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    """It would train with the learning rate and the seed of the run before, and nobody would see it."""
    before = Welcome(0, "{}", [1], 2, False)
    made = welcomed(monkeypatch, Welcome(0, settings, [1], 2, False), before)
    prepared = made.setup
    made.measured = None if settings == before.settings else object()  # type: ignore[assignment]
    with raises(JoinFailed, "far enough"):
        asyncio.run(made._attend_once(Backoff()))
    assert made.setup.settings == settings
    assert (made.setup is prepared) == (settings == before.settings)


def test_a_bundle_that_is_half_copied_ends_nobody_who_is_at_work(tmp_path: Path) -> None:
    """At the start it is an error; later a client and the main server try again, until the bundle is whole."""
    authority = Authority.create(tmp_path / "certs")
    authority.add("ward-1")
    for name in ("ward-1", "main"):
        (authority.bundle_of(name) / "cert.pem").unlink()

    async def story() -> None:
        made = device(authority.bundle_of("ward-1"))
        with raises(InputError, "cert.pem", "missing"):
            made._open_channels()
        made.setup = SimpleNamespace()
        with raises(JoinFailed, "certificate", "trying again") as away:
            made._open_channels()
        assert str(tmp_path) not in away.value.why
        with raises(EdgeLost, "certificate", "cert.pem"):
            _ = EdgeLink("127.0.0.1:9", authority.bundle_of("main"), RUN_NAME).peer
        authority.renew(["ward-1", "main"])
        for channels in (made._open_channels(), EdgeLink("127.0.0.1:9", authority.bundle_of("main"), RUN_NAME).peer):
            await channels.close()

    asyncio.run(story())


@pytest.mark.parametrize("address", ["edge-box:7434", "box:443", "edge.example.org:7434", "10.0.0.2:7434"])
def test_no_line_names_the_host_of_a_server(address: str) -> None:
    assert (
        scrubbed(f"DNS resolution failed for {address}: not found") == "DNS resolution failed for (address): not found"
    )


def test_a_run_whose_operator_has_no_data_names_none() -> None:
    """Nor does the page, which would say that scikit-learn's digits were trained."""
    run = {"model": {"name": "cnn"}, "data": {"augment": "none"}, "fleet": {"num_clients": 2}}
    elsewhere = {"evaluate": "clients", "input": (1, 8, 8), "classes": 10}
    config = run_config(MainSettings(run=run, **elsewhere))
    assert config.data.name == "devices' own data"
    assert config.data.augment == "none"
    with raises(InputError, "devices", "data"):
        read_data(config)
    named = run | {"data": {"name": "digits"}}
    assert run_config(MainSettings(run=named, **elsewhere)).data.name == "digits"
    assert run_config(MainSettings(run=run)).data.name == "digits"


def test_the_edge_server_has_time_to_build_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit shorter than that would begin it anew for ever."""
    asked = list[float]()

    async def ask(self: EdgeLink, method: str, message: object, answer: type, timeout_s: float) -> Standing:
        asked.append(timeout_s)
        return Standing("", small_kit().fingerprint, [], [])

    monkeypatch.setattr(EdgeLink, "_ask", ask)
    asyncio.run(EdgeLink("127.0.0.1:9", None, RUN_NAME).begin_run(small_kit()))
    assert asked == [600.0]


def test_a_wrong_setting_is_said_with_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "main.toml"
    file.write_text('edgge = "127.0.0.1:1"')
    with raises(InputError, "'edgge'", "did you mean 'edge'"):
        read_settings(file, MainSettings)
    file.write_text('min_clients = "x"')
    with raises(InputError, "min_clients is 'x'", "whole number", "docs/deploy.md"):
        read_settings(file, MainSettings)


@pytest.mark.parametrize("words", [("serve", "main"), ("status",), ("admin",)])
def test_settings_that_are_not_there_are_said_to_be_missing(words: tuple[str, ...], tmp_path: Path) -> None:
    file, order = tmp_path / "main.toml", ["pause"] if words == ("admin",) else []
    names(hsfl(*words, file, *order).err, f"{file} is not there", "docs/deploy.md has a main.toml")
    names(hsfl(*words, tmp_path, *order).err, f"{tmp_path} cannot be read", "Is a directory")


def test_paths_are_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    file = tmp_path / "ward-1.toml"
    file.write_text('name = "ward-1"\ncerts = "certs"\ndata = {name = "csv:rows.csv", dir = "~/sets"}\n')
    client = read_settings(file, ClientSettings)
    assert (client.certs, client.data) == (
        str(tmp_path / "certs"),
        {"name": f"csv:{tmp_path}/rows.csv", "dir": "~/sets"},
    )
    file.write_text('out = "run"\n[run]\ndata = {name = "npz:own.npz"}\nmodel = {init_weights = "first.safetensors"}\n')
    main = read_settings(file, MainSettings)
    assert main.run["data"]["name"] == f"npz:{tmp_path}/own.npz"
    assert main.run["model"]["init_weights"] == str(tmp_path / "first.safetensors")


def test_the_last_line_of_a_log_for_programs_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    stream = quiet()
    _say_end(open_log("main", True, stream), True, "finished after 3 rounds", status="finished", rounds=3)
    told = json.loads(stream.getvalue())
    assert (told["event"], told["status"], told["rounds"]) == ("ended", "finished", 3)
    assert capsys.readouterr().out == ""


def ended_with(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def test_a_second_device_that_waited_long_enough_says_why_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that the main server was away."""
    made = device()
    made.settings = made.settings.model_copy(update={"away_s": 0.0})

    async def attend(backoff: Backoff) -> str:
        raise ended_with(TAKEN, "ward-1 is connected from another address")

    monkeypatch.setattr(made, "_attend_once", attend)
    with raises(InputError, "ward-1 is connected from", "0 s (away_s)"):
        asyncio.run(made.run_and_reconnect())


@pytest.mark.parametrize("is_steady", [False, True])
def test_a_join_that_is_lost_at_once_does_not_reset_the_pauses(
    monkeypatch: pytest.MonkeyPatch, is_steady: bool
) -> None:
    """Two devices that evict each other would do so five times a second, with a line each time. A connection that lasted resets both."""
    stream, pauses = quiet(), list[float]()
    made = device(stream=stream)

    async def attend(backoff: Backoff) -> str:
        if len(pauses) == 4:
            return "enough"
        made.call = object()
        if is_steady:
            made._note_steady(backoff)
        raise ended_with(grpc.StatusCode.UNAVAILABLE)

    async def wait(self: Backoff) -> None:
        pauses.append(self._next_s)
        self._next_s = 2 * self._next_s

    monkeypatch.setattr(made, "_attend_once", attend)
    monkeypatch.setattr(Backoff, "wait", wait)
    assert asyncio.run(made.run_and_reconnect()) == "enough"
    assert pauses == ([0.2] * 4 if is_steady else [0.2, 0.4, 0.8, 1.6])
    assert len(stream.getvalue().splitlines()) == (4 if is_steady else 1)
