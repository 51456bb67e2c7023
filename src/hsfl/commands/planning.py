"""`hsfl plan` and `hsfl allocate`: the optimiser from the command line. Torch only to measure a model."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Column, Table

from hsfl.commands.models import read_shape, size_of
from hsfl.commands.reports import page_beside, say_page
from hsfl.commands.shared import Changes, Json, err_console, need_plan_extra, one_line_errors, out_console, print_json
from hsfl.errors import InputError, known

commands = typer.Typer()

SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
UNITS = {"cpu": ("hz", 1.0), "memory": ("b", 8.0), "up": ("bps", 1.0), "down": ("bps", 1.0)}  # bytes become bits


@commands.command(
    epilog="Examples:\n\n"
    "- `hsfl plan paper-cifar10` plans for the paper's fleet and radio\n"
    "- `hsfl plan --cost resnet18.json --set fleet.num_clients=5 --json`\n"
    "- `hsfl plan --set network.kind=measured --set network.main_up_bps=5e6 --set network.main_down_bps=2e7`\n"
    '- `hsfl plan --device "cpu=5e9,memory=1GiB,up=5Mbps,down=20Mbps"` says which cut for one device'
)
def plan(
    config: Annotated[str | None, typer.Argument(help="A preset's name, or a .toml or .json file.")] = None,
    changes: Changes = None,
    device: Annotated[str | None, typer.Option(help="One device alone: cpu=..,memory=..,up=..,down=..")] = None,
    cost: Annotated[Path | None, typer.Option(help="A cost table saved by hsfl cost --save; needs no torch.")] = None,
    input: Annotated[str, typer.Option(help="Channels, height and width, where the model is measured.")] = "3,32,32",
    classes: Annotated[int, typer.Option(help="Number of classes, where the model is measured.")] = 10,
    samples_per_client: Annotated[int, typer.Option(min=1, help="Training samples of each client.")] = 5000,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A folder for plan.json and its page.")] = None,
    as_json: Json = False,
) -> None:
    """Choose cuts and allocate for a model and a fleet, with a proven gap, and explain it.

    The policy is allocation.policy: proposed, or baselines joined by +, such as scls+ecfa or etra_even.
    """
    with one_line_errors():
        need_plan_extra()
        from hsfl.config import read_config
        from hsfl.models.cost import CostTable
        from hsfl.records import write_json
        from hsfl.report.page_words import describe_plan
        from hsfl.training.planning import device_table, make_plan
        from hsfl.training.world import OPTIMIZER_STATES, measured_cost, world_of

        settings = read_config(config, changes or [])
        wanted = read_device(device) if device is not None else None
        if wanted is not None and out is not None:
            raise InputError(f"--out {out} takes the plan of a fleet; leave it out with --device")
        if cost is not None:
            table = CostTable.load(cost)
        else:
            states = OPTIMIZER_STATES[settings.train.optimizer]
            table = measured_cost(settings.model, read_shape(input), classes, settings.train.batch_size, states)
        world = world_of(settings, table)
        if wanted is not None:
            rows, best = device_table(world, settings, settings.train.local_epochs * samples_per_client, wanted)
        else:
            with err_console.status("choosing cuts ...") as status:
                count = np.full(settings.fleet.num_clients, float(samples_per_client))
                answer = make_plan(
                    settings, world, count, lambda what, step, best_s: status.update(_step(what, step, best_s))
                )
        if out is not None and wanted is None:
            words = " ".join(describe_plan(settings, samples_per_client))
            write_json(out / "plan.json", asdict(answer) | {"words": words, "config": settings.model_dump(mode="json")})
    if wanted is not None:
        print_json({"cuts": rows, "best_cut": best}) if as_json else _show_device(rows, best)
        raise typer.Exit(0 if best is not None else 2)
    page = page_beside(out) if out is not None else None
    if as_json:
        print_json(asdict(answer))
        return
    _show_plan(answer)
    say_page(page)


def _step(what: str, step: int, best_s: float) -> str:
    return f"choosing cuts: {what} {step}, best round {best_s:.4g} s"


def read_device(text: str) -> dict[str, float]:
    """cpu=5e9,memory=1GiB,up=5Mbps,down=20Mbps -> cycles per second and bits."""
    device: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        known("--device field", name, UNITS)
        unit, bits = UNITS[name]
        match = re.fullmatch(rf"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kmgt]i?)?(?:{unit}|it/s|bit/s)?", value.strip().lower())
        try:
            number = float(match.group(1)) * SCALES[match.group(2) or ""] * bits if match and equals else 0.0
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise InputError(f"--device {name} is {value!r}; give a number such as 5e9, 1GiB or 5Mbps")
        device[name] = number
    if missing := [name for name in ("cpu", "up", "down") if name not in device]:
        raise InputError(f"--device lacks {missing[0]}; give cpu=..,memory=..,up=..,down=..")
    return device


def _show_device(rows: list[dict[str, Any]], best: int | None) -> None:
    titles = {"client": "client", "smashed": "up", "server": "server", "gradient": "down", "model_up": "model up"}
    table = Table(
        "cut",
        *titles.values(),
        "model down",
        "round",
        Column("memory", no_wrap=True),
        title="seconds of a round",
        title_justify="left",
    )
    for row in rows:
        times = [f"{row['seconds'][name]:.3g}" for name in (*titles, "model_down")]
        mark = "" if row["fits"] else " !"
        style = "bold" if row["cut"] == best else "dim" if not row["fits"] else None
        table.add_row(str(row["cut"]), *times, f"{row['round_s']:.4g}", size_of(row["memory_bits"]) + mark, style=style)
    out_console.print(table)
    if not all(row["fits"] for row in rows):
        out_console.print("! does not fit into the device's memory", highlight=False)
    if best is None:
        out_console.print("no cut fits; give the device more memory or train with a smaller batch", highlight=False)
    else:
        out_console.print(f"cut {best} is the fastest that fits", highlight=False)


def _show_plan(answer: Any) -> None:
    radio = answer.clients[0].main_up_power_w is not None
    band = "share" if answer.clients[0].share is not None else "subchannels"
    table = Table(
        "client", "cut", "server Gcycles/s", *((band, "up W", "down W") if radio else ()), "seconds", "held up by"
    )
    for client in answer.clients:
        total_s = sum(client.seconds.values()) - client.seconds["model_down"]
        held = f"{client.bottleneck.replace('_', ' ')} ({client.seconds[client.bottleneck]:.4g} s)"
        middle = _radio_cells(client) if radio else ()
        table.add_row(
            str(client.client), str(client.cut), f"{client.server_hz / 1e9:.4g}", *middle, f"{total_s:.4g}", held
        )
    out_console.print(table)
    baselines = Table("policy", "mean round s", "longer than proposed")
    for name, mean_s in answer.baselines_s.items():
        baselines.add_row(name, f"{mean_s:.5g}", f"{mean_s / answer.baselines_s['proposed'] - 1:+.1%}")
    out_console.print(baselines)
    out_console.print(
        f"{answer.policy}: a round takes {answer.round_s:.5g} s on average over {answer.num_samples} samples; no cuts and no "
        f"allocation can beat {answer.lower_bound_s:.5g} s (gap {answer.gap:.2%}); found in {answer.seconds:.1f} s",
        soft_wrap=True,
        highlight=False,
    )


def _radio_cells(client: Any) -> tuple[str, str, str]:
    """Subchannels, or a share of the band, and the powers towards and from the main server."""
    if client.share is not None:
        band = f"{sum(client.share) / len(client.share):.1%}"
    else:
        band = " ".join(map(str, client.subchannels))
    return band, f"{client.main_up_power_w:.4g}", f"{client.main_down_power_w:.4g}"
