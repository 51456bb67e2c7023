"""Flower on the shared work: its simulation engine, with one or two actors of one processor each, and `FedAvg` on the server.

Ray's workers run at niceness 15 unless told otherwise, and starve on a machine that does anything else. Ray opens ports: run this where
nobody else reaches them (docs/benchmarks.md).
"""

import os
import sys

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}

import torch
from flower_client import SPEC_VARIABLE
from flower_client import app as client_app
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from paired_rounds import PairedRounds, read_spec
from shared_work import WORKS, arrays_of, make_model

server_app = ServerApp()
CLIENTS = list[int]()  # who trained in the round


def note_clients(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
    CLIENTS[:] = [int(reply["metrics"]["client"]) for reply in replies]
    return MetricRecord({})


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    spec = read_spec()
    work = WORKS[spec["work"]]
    model, rounds = make_model(work, spec["shared"]), PairedRounds(spec)

    def round_over(server_round: int, arrays: ArrayRecord) -> None:
        def new_weights() -> list:
            model.load_state_dict(arrays.to_torch_state_dict())
            return arrays_of(model)

        rounds.round_done(new_weights, CLIENTS) if server_round else rounds.begin()

    grid.pull_interval = spec["settings"]["pull_interval_s"]
    fraction = work.per_round / work.num_clients
    strategy = FedAvg(
        fraction_train=fraction, fraction_evaluate=0.0, min_train_nodes=work.per_round, min_available_nodes=work.num_clients,
        train_metrics_aggr_fn=note_clients,
    )  # fmt: skip
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds.total_rounds, evaluate_fn=round_over)


def main() -> None:
    spec = read_spec()
    os.environ[SPEC_VARIABLE] = sys.argv[1]
    torch.set_num_threads(1)
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {
            "num_cpus": spec["settings"]["actors"],
            "include_dashboard": False,
            **spec["settings"]["ray_init"],
        },
    }
    run_simulation(server_app, client_app, WORKS[spec["work"]].num_clients, backend_config=backend)


if __name__ == "__main__":
    main()
