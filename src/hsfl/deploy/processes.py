"""The life of each process: from its settings to its end. SIGTERM and Ctrl-C end it in good order."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from hsfl import plugins
from hsfl.codec_table import DOWN, used_codecs
from hsfl.config import RunConfig
from hsfl.data.registry import Dataset
from hsfl.deploy.admin.benching import BenchRules
from hsfl.deploy.admin.fleet_control import FleetControl
from hsfl.deploy.client import ClientProcess
from hsfl.deploy.compute_queue import ComputeQueue
from hsfl.deploy.diagnosis import diagnose
from hsfl.deploy.edge_server import EdgeProcess
from hsfl.deploy.logs import Log
from hsfl.deploy.main.client_counts import ClientCounts
from hsfl.deploy.main.cut_planner import CutPlanner
from hsfl.deploy.main.edge_link import EdgeLink
from hsfl.deploy.main.handlers import SharedState
from hsfl.deploy.main.learned_speeds import work_of_main
from hsfl.deploy.main.main_server import MainProcess
from hsfl.deploy.main.overlapping_evaluation import num_test_batches
from hsfl.deploy.main.roster import Roster
from hsfl.deploy.main.server_checkpoint import MainCheckpoint
from hsfl.deploy.metrics import Metrics, serve_metrics
from hsfl.deploy.model_kit import ModelKit, make_kit
from hsfl.deploy.settings import ClientSettings, EdgeSettings, MainSettings, run_config
from hsfl.deploy.trust.bundle import check_bundle
from hsfl.deploy.trust.expiry import bundle_days, expires_soon
from hsfl.deploy.trust.identity import check_name, role_of
from hsfl.deploy.wire.transport import listen
from hsfl.errors import InputError
from hsfl.files import writing
from hsfl.models.cost_table import measure_cost
from hsfl.models.recipes import memory_format_of
from hsfl.planning.coded_cost import timed_coding
from hsfl.planning.world import OPTIMIZER_STATES
from hsfl.runs.client_data import read_data, sample_facts
from hsfl.runs.prepare import input_shape, make_images
from hsfl.runs.run_folder.folder import LOCK, RunFolder, check_same_run, lock_file
from hsfl.runs.run_folder.write_records import Summary
from hsfl.training.codecs.coding_speed import coding_seconds
from hsfl.training.speed import training_speed

SPEED_S = 0.5  # for which the main server measures its own speed


def certs_folder(certs: str | None, insecure: bool, name: str) -> Path | None:
    """The folder of certificates, which must be valid now and for this name; None with `insecure`, for plaintext."""
    if insecure:
        return None
    if certs is None:
        raise InputError(
            "certs is not given; name the folder that hsfl certs add wrote, or try on this machine with --insecure"
        )
    identity = check_bundle(Path(certs), role_of(name)).identity
    if identity.name != name:
        raise InputError(
            f"{certs} is the bundle of {identity.name}, and this is {name}; copy the folder that hsfl certs add {name} wrote"
        )
    return Path(certs)


def _on_signals(stop: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, stop)


async def serve_main(settings: MainSettings, insecure: bool, log: Log) -> Summary:
    """Run the main server until all rounds are done or it is told to end."""
    certs, config = certs_folder(settings.certs, insecure, "main"), run_config(settings)
    folder, compute, metrics = (
        RunFolder(settings.out),
        ComputeQueue(settings.threads, config.network.service),
        Metrics(),
    )
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    with folder.locked(), _metrics_page(settings.metrics, metrics, certs, log):
        kit, dataset = await compute.run(lambda: _model_and_data(settings, config))
        _begin_folder(folder, config, settings.threads)
        planner = await compute.run(lambda: _measured_planner(kit, log))
        test = make_images(config, dataset, "test") if dataset is not None else None
        classes = dataset.classes if dataset is not None else tuple(map(str, range(kit.num_classes)))
        roster = Roster(folder.path, settings.clients, config.fleet.num_clients)
        edge = EdgeLink(settings.edge, certs, roster.run)
        rules = BenchRules(settings.bench_after, settings.bench_rounds, settings.bench_longest)
        control = FleetControl(folder, rules, log, kit.num_units)
        counts = ClientCounts(metrics, settings.metrics_clients, roster.run)
        shared = SharedState(settings, kit, planner, roster, edge, compute, log, metrics, control, counts)
        if settings.test_beside and test is not None:
            planner.test_beside(num_test_batches(test, kit.num_classes))
        checkpoint = MainCheckpoint(shared, folder, test, classes)
        checkpoint.restore()
        main = MainProcess(shared, checkpoint)
        server = await listen(
            settings.listen, "hsfl.Main", main.methods(), certs, log, metrics, kit.batch_bytes, main.drop_revoked
        )
        _on_signals(main.stopping.set)
        log.event("listens", port=server.port)
        try:
            return await main.run()
        finally:
            roster.close()
            await server.stop()
            await edge.close()
            compute.close()


def _model_and_data(settings: MainSettings, config: RunConfig) -> tuple[ModelKit, Dataset | None]:
    """The model, and the operator's own data where they judge the model (else None)."""
    dataset = read_data(config) if settings.evaluate == "here" else None
    if dataset is not None:
        shape, num_classes = input_shape(config, dataset), dataset.num_classes
    elif settings.input is not None and settings.classes is not None:
        shape, num_classes = settings.input, settings.classes
    else:
        shape, num_classes = sample_facts(config)
    kit = make_kit(config, tuple(shape), num_classes, config.model.certify)
    _ = kit.initial, kit.shapes  # read these before the model takes other weights
    return kit, dataset


def _measured_planner(kit: ModelKit, log: Log) -> CutPlanner:
    """A planner that knows what each cut costs and how fast this machine is."""
    train, shape = kit.config.train, kit.input_shape
    cost = measure_cost(kit.model, shape, train.batch_size, optimizer_states=OPTIMIZER_STATES[train.optimizer])
    laid_out = memory_format_of(kit.config.model)
    speed = training_speed(kit.model, shape, kit.num_classes, train, SPEED_S, memory_format=laid_out)
    coding_s = coding_seconds(used_codecs(kit.config.link), speed.largest_message, DOWN)
    coding = timed_coding(coding_s, speed.flops_per_s)
    return CutPlanner(kit.config, cost, speed.flops_per_s, log, work_of_main(speed), coding)


def _begin_folder(folder: RunFolder, config: RunConfig, num_threads: int | None) -> None:
    """Write the run folder's first files, or check that an existing folder is this run's."""
    if not folder.config_path.exists():
        folder.check_free()
        folder.create(config, num_threads)
        return
    check_same_run(folder.config(), config, folder.path)
    folder.clear_scratch()
    if not (folder.path / "checkpoint").is_dir():
        folder.keep_rounds(0)


@contextmanager
def _metrics_page(address: str | None, metrics: Metrics, certs: Path | None, log: Log) -> Iterator[None]:
    """Serve the page of the metrics, if it has an address. Enter this before the server listens: the address may be refused."""
    metrics.watch_certificate(certs)
    if (days := bundle_days(certs)) is not None and expires_soon(days):
        log.event("this server's certificate expires soon", "warning", days=round(days, 1))
    end = (lambda: None) if address is None else serve_metrics(metrics, address)[1]
    try:
        yield
    finally:
        end()


async def serve_edge(settings: EdgeSettings, insecure: bool, log: Log) -> None:
    """Run the edge server until it is told to end."""
    plugins.load_plugins_of(settings.plugins)
    certs, folder, metrics = certs_folder(settings.certs, insecure, "edge"), Path(settings.out), Metrics()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / LOCK), _metrics_page(settings.metrics, metrics, certs, log):
        compute, stopping = ComputeQueue(settings.threads), asyncio.Event()
        edge = EdgeProcess(folder, compute, log, metrics, settings.model)
        server = await listen(settings.listen, "hsfl.Edge", edge.methods(), certs, log, metrics)
        _on_signals(stopping.set)
        log.event("listens", port=server.port)
        try:
            await stopping.wait()
        finally:
            await server.stop()
            compute.close()


async def run_client(settings: ClientSettings, insecure: bool, log: Log) -> str:
    """Run a client until there are no more rounds or it is told to end; returns why it ended."""
    certs = certs_folder(settings.certs, insecure, check_name(settings.name))
    device, stopping = ClientProcess(settings, certs, log), asyncio.Event()
    for server, address in (("main", settings.main), ("edge", settings.edge)):
        if problem := await asyncio.to_thread(diagnose, address, server, certs):
            log.event(problem, "warning")
            device.reachability_problem = device.reachability_problem or problem
    _on_signals(stopping.set)
    running, stop_request = asyncio.create_task(device.run_and_reconnect()), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((running, stop_request), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return await running
        await device.leave()
        return "told to end"
    finally:
        running.cancel()
        stop_request.cancel()
        await asyncio.gather(running, stop_request, return_exceptions=True)
        device.thread.shutdown(wait=False, cancel_futures=True)
