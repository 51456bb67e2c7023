"""Peers with a good certificate and bad intentions: what they claim costs a server neither memory nor its life, and tells them nothing."""

import ast
import io
import json
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from hsfl import deploy
from hsfl.deploy.client import ClientProcess
from hsfl.deploy.logs import open_log
from hsfl.deploy.main.cut_planner import CutPlanner
from hsfl.deploy.main.edge_link import EdgeLost, _lost
from hsfl.deploy.main.handlers import AttendHandler
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.processes import certs_folder
from hsfl.deploy.settings import ClientSettings
from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.trust.credentials import open_channel, plaintext_metadata
from hsfl.deploy.wire.client_messages import Batch, Hello, OwnSpeeds, Ready
from hsfl.deploy.wire.frames import MAGIC, PREFIX, VERSION, WireError
from hsfl.deploy.wire.message_fields import HIGHEST_RATE, LOWEST_RATE, MOST_SAMPLES
from hsfl.deploy.wire.messages import KINDS, expect_message, pack_message, unpack_message
from hsfl.deploy.wire.transport import LEAST_MESSAGE_BYTES, ServedMethod, listen
from hsfl.errors import DataMissing, InputError
from hsfl.models.cost_table import measure_cost
from hsfl.runs.prepare import make_model
from tests.deploy.trust_bench import asked, in_loop
from tests.naming import raises
from tests.small_runs import tiny

USUAL = OwnSpeeds(1e9, 1e7, 1e7, 1e7, 1e7, None)


def quiet(stream=None):
    return open_log("main", True, stream or io.StringIO())


# --- what a client claims


@pytest.mark.parametrize(
    ("counts", "measured"),
    [
        ([2**53], USUAL),
        ([1], OwnSpeeds(1e-300, 1e7, 1e7, 1e7, 1e7, None)),
        ([1], OwnSpeeds(1e9, 1e7, 1e7, 1e7, 1e300, None)),
        ([1], OwnSpeeds(1e9, 1e7, 1e7, 1e7, 1e7, 1e-300)),
        ([-1], USUAL),
    ],
)
def test_absurd_claims_are_refused_at_the_door(counts, measured):
    with pytest.raises(WireError, match=r"Ready: (class_counts|measured)"):
        expect_message(pack_message(Ready("f", counts, measured, None)), Ready)


def test_samples_are_bounded_in_all():
    shared = SimpleNamespace(log=None, kit=SimpleNamespace(check_fingerprint=lambda *words: None, num_classes=3))
    ready = Ready("f", [MOST_SAMPLES, MOST_SAMPLES, 1], USUAL, None)
    with raises(InputError, "ward-1", "20000001 samples", "10000000"):
        AttendHandler(shared)._check_ready("ward-1", 0, ready)


def test_a_plan_stands_whatever_clients_say_of_their_seconds():
    """The extremes that a message may hold give finite rounds, and seconds that tend to nothing no infinite speeds."""
    config = tiny()
    cost = measure_cost(make_model(config, (1, 8, 8), 10), (1, 8, 8), 8, optimizer_states=2)
    for extreme in (LOWEST_RATE, HIGHEST_RATE):
        planner = CutPlanner(config, cost, 1e9, quiet())
        for seat, measured in enumerate((USUAL, USUAL, OwnSpeeds(*(extreme,) * 5, None))):
            planner.join(seat, Ready("f", [20], measured, None))
        assert np.isfinite(planner.plan(0, (0, 1, 2), ["a", "b", "c"]).timeline.round_s)
        for took_s in (5e-324, 1e9):
            phases = dict.fromkeys(("client", "smashed", "gradient", "model_up", "model_down"), took_s)
            planner.learn(0, 2, 1, phases, {"up": 1000, "down": 1000, "head_up": 1000, "head_down": 1000})
            assert np.isfinite(planner.plan(1, (0, 1, 2), ["a", "b", "c"]).timeline.round_s)


def test_a_tensor_of_no_bytes_and_endless_sides_is_refused():
    header = {"name": "smashed", "dtype": "float32", "shape": [2**40, 2**40, 0], "num_bytes": 0}
    fields, about = json.dumps({"step": 0}).encode(), json.dumps([header]).encode()
    message = PREFIX.pack(MAGIC, VERSION, KINDS[Batch], len(fields), len(about)) + fields + about
    with raises(WireError, "'smashed'", "shape") as refused:
        unpack_message(message)
    assert refused.value.reason == "shape"


# --- what a peer hears


@asynccontextmanager
async def answering(handle, largest_bytes=0):
    """A server with one method, in plaintext; a channel to it."""
    methods = {"Ask": ServedMethod("unary_unary", ("client",), handle)}
    listening = await listen("127.0.0.1:0", "hsfl.Main", methods, None, quiet(), Metrics(), largest_bytes)
    async with open_channel(f"127.0.0.1:{listening.port}", "main", None) as channel:
        yield lambda request: asked(channel, "/hsfl.Main/Ask", request, metadata=plaintext_metadata("ward-1"))
    await listening.stop(0)


@in_loop
async def test_no_answer_names_a_file_of_the_server():
    async def handle(request, context):
        raise {b"setting": InputError, b"data": DataMissing, b"failure": OSError}[request](
            "/srv/run/seats.json is full"
        )

    async with answering(handle) as ask:
        assert await ask(b"setting") == "FAILED_PRECONDITION: (path) is full"
        assert await ask(b"data") == "FAILED_PRECONDITION: (path) is full"
        assert await ask(b"failure") == "INTERNAL: the server could not do this; its log says why"


@in_loop
async def test_a_message_longer_than_a_batch_can_be_is_not_taken():
    async def handle(request, context):
        return str(len(request)).encode()

    async with answering(handle) as ask:
        assert await ask(bytes(LEAST_MESSAGE_BYTES)) == str(LEAST_MESSAGE_BYTES)
        assert (await ask(bytes(LEAST_MESSAGE_BYTES + 1))).startswith("RESOURCE_EXHAUSTED")
    async with answering(handle, LEAST_MESSAGE_BYTES + 1) as ask:
        assert await ask(bytes(LEAST_MESSAGE_BYTES + 1)) == str(LEAST_MESSAGE_BYTES + 1)


@in_loop
@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_message_that_is_compressed_is_not_unpacked(how):
    """A length limits the bytes that arrive: zeros become a thousandth of themselves, and unpacked they would be any amount."""
    hello = pack_message(Hello("ward-1")) + bytes(4 * LEAST_MESSAGE_BYTES)

    async def handle(request, context):
        assert len(request) < len(hello) / 100
        return str(unpack_message(request)).encode()

    methods = {"Ask": ServedMethod("unary_unary", ("client",), handle)}
    listening = await listen("127.0.0.1:0", "hsfl.Main", methods, None, quiet(), Metrics())
    async with open_channel(f"127.0.0.1:{listening.port}", "main", None) as channel:
        ask = channel.unary_unary("/hsfl.Main/Ask")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(hello, metadata=plaintext_metadata("ward-1"), compression=how)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    await listening.stop(0)


# --- what a client grants


def test_inputs_stay_on_the_device_whatever_the_main_server_plans(tmp_path):
    own = SimpleNamespace(kit=SimpleNamespace(num_units=5))
    usual, open_one = (ClientProcess(ClientSettings(name="ward-1", min_cut=cut), None, quiet()) for cut in (1, 0))
    for cut in (1, 5):
        usual._check_cut(own, cut)
    for cut in (0, 6):
        with raises(InputError, f"cut {cut}", "1 to 5"):
            usual._check_cut(own, cut)
    open_one._check_cut(own, 0)


def test_a_process_looks_at_its_own_certificate_first(tmp_path):
    authority = Authority.create(tmp_path / "certs")
    authority.add("ward-1")
    bundle = str(authority.bundle_of("ward-1"))
    assert certs_folder(bundle, False, "ward-1") == authority.bundle_of("ward-1")
    with raises(InputError, "bundle of ward-1", "ward-2", "copy the folder"):
        certs_folder(bundle, False, "ward-2")
    with raises(InputError, "bundle of ward-1", "(client)", "role main"):
        certs_folder(bundle, False, "main")
    with raises(InputError, "certs", "name the folder"):
        certs_folder(None, False, "ward-1")
    assert certs_folder(bundle, True, "ward-1") is None


FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


@pytest.mark.parametrize("path", sorted(Path(deploy.__file__).parent.rglob("*.py")), ids=lambda path: path.stem)
def test_nothing_that_a_peer_sends_is_unpickled_or_executed(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {getattr(node, "module", None) or "", *(alias.name for alias in node.names)}
            assert not {name.partition(".")[0] for name in names} & FORBIDDEN
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("eval", "exec", "compile", "__import__", "torch.load", "np.load", "numpy.load"), (
                called
            )
            assert not any(word.arg == "allow_pickle" for word in node.keywords)


@pytest.mark.parametrize(("code", "kind"), [("UNAUTHENTICATED", EdgeLost), ("PERMISSION_DENIED", InputError)])
def test_an_expired_certificate_is_a_lost_line_and_a_wrong_one_is_an_error(code, kind):
    """After the first the main server opens a new channel, with what is in its bundle then; the second would happen again."""
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode[code], nothing, nothing, details="words of the gate")
    assert isinstance(_lost(error), kind)
