"""`hsfl plan`: the optimiser for a fleet, or with `--device` for one device, for which the seconds of every cut are shown.

Torch is imported only where a model has to be measured. The tables of a fleet's plan are in `plan_tables`.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsfl import quantities
from hsfl.commands.console import (
    CLASSES,
    SHAPE,
    Changes,
    DataDir,
    Json,
    Plugins,
    err_console,
    need_plan_extra,
    one_line_errors,
    out_console,
    print_json,
    quoted,
    say_compiling,
    show_table,
)
from hsfl.commands.cost import read_shape
from hsfl.commands.plan_tables import show_plan
from hsfl.commands.report import say_page, write_page_beside
from hsfl.errors import InputError, known_name
from hsfl.formats import brief, seconds, significant

if TYPE_CHECKING:
    from hsfl.config import RunConfig
    from hsfl.models.cost_table import CostTable
    from hsfl.planning.world import World
    from hsfl.runs.client_data import Survey

commands = typer.Typer()
SAMPLES = 5000  # of each client, where no data set is named
DEVICE_FIELDS = {
    "cpu": "cycles",
    "compute": "compute",
    "memory": "memory",
    "up": "rate",
    "down": "rate",
}  # kinds of quantities


@commands.command(
    "plan",
    epilog="Examples:\n\n"
    "- `hsfl plan paper-cifar10` plans for the paper's fleet and radio\n"
    "- `hsfl plan --cost resnet18.json --set fleet.num_clients=5 --json`\n"
    "- `hsfl plan --set network.kind=measured --set network.main_up_bps=5e6 --set network.main_down_bps=2e7`\n"
    '- `hsfl plan --device "cpu=5GHz,memory=1GiB,up=5Mbps,down=20Mbps"` says which cut is best for one device',
)
def plan_command(
    config: Annotated[str | None, typer.Argument(help="A preset's name, or a .toml or .json file.")] = None,
    changes: Changes = None,
    plugin: Plugins = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Say which cut is best for one device instead: cpu=.. or compute=.., memory=.., up=.., down=..; "
            "b is bits, B is bytes."
        ),
    ] = None,
    cost: Annotated[
        Path | None,
        typer.Option(
            help="A cost table that hsfl cost --save wrote; then no model is measured and no torch is needed."
        ),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(
            help="Channels, height and width of the images for which the model is measured; by default those of the "
            "config's data set, without a config 3,32,32."
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            help="The number of classes for which the model is measured; by default the data set's, without a config 10."
        ),
    ] = None,
    samples_per_client: Annotated[
        int | None,
        typer.Option(
            min=1, help="The training samples of each client; by default those of a run, without a config 5000."
        ),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Keep plan.json and a page in this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Choose cuts and allocate for a model and a fleet, with a proven gap, and explain the plan.

    The policy is allocation.policy: proposed, or baselines joined by +, such as scls+ecfa or etra_even.
    """
    with one_line_errors():
        from hsfl.config import read_config
        from hsfl.planning.world import world_of
        from hsfl.runs.checks.unused_settings import refuse_unused

        all_changes = [*(changes or []), *([f"data.dir={quoted(str(data_dir))}"] if data_dir is not None else [])]
        settings = read_config(config, all_changes, plugin or ())
        refuse_unused(config, all_changes, [settings], planning=True)
        need_plan_extra()
        device_numbers = read_device(device) if device is not None else None
        if device_numbers is not None and out is not None:
            raise InputError(f"--out {out} takes the plan of a fleet; leave it out with --device")
        _check_cost(cost, input, classes, samples_per_client, changes or [])
        survey = _survey_data(settings, config is not None, cost, input, classes, samples_per_client)
        world = world_of(settings, _cost_table(settings, cost, survey)).named(survey.client_names)
        if device_numbers is not None:
            _plan_device(settings, world, device_numbers, round(float(survey.num_samples.mean())), as_json)
        else:
            _plan_fleet(settings, world, survey, cost is not None, out, as_json)


def _survey_data(
    settings: "RunConfig",
    has_config: bool,
    cost: Path | None,
    shape: str | None,
    classes: int | None,
    samples_per_client: int | None,
) -> "Survey":
    """Shape, classes and samples of the config's data set; where neither a config nor a data set is named, SHAPE, CLASSES and
    SAMPLES."""
    from hsfl.runs.client_data import expected_samples

    size = None if shape is None else read_shape(shape)
    if not has_config and not settings.data.model_fields_set:
        size, classes, samples_per_client = size or SHAPE, classes or CLASSES, samples_per_client or SAMPLES
    return expected_samples(
        settings,
        shape=size,
        num_classes=classes,
        samples_per_client=samples_per_client,
        cost=cost is not None,
    )


def _cost_table(settings: "RunConfig", saved: Path | None, survey: "Survey") -> "CostTable":
    """The saved cost table, or that of the config's model, which is measured with torch."""
    from hsfl.models.cost_table import CostTable
    from hsfl.planning.world import model_cost

    if saved is not None:
        return CostTable.load(saved)
    try:
        return model_cost(settings, survey.shape, survey.num_classes)
    except ImportError as error:
        raise InputError(
            f"measuring {settings.model.name} needs torch ({error}); pip install torch, or give --cost with a table "
            "that hsfl cost --save wrote elsewhere"
        ) from None


def _check_cost(
    saved: Path | None, shape: str | None, classes: int | None, samples_per_client: int | None, changes: list[str]
) -> None:
    """Refuse options that are for measuring a model beside a table that has its costs, and settings of data that are
    not read."""
    from hsfl.config import set_names

    for name in (name for change in changes for name in set_names(change)):
        if saved is not None and name.startswith("model."):
            raise InputError(f"{name} has no effect beside --cost {saved}, which has the model's costs; leave one out")
        known = saved is not None or (shape is not None and classes is not None)
        if known and samples_per_client is not None and name.startswith("data."):
            raise InputError(f"{name} has no effect beside --samples-per-client, since no data are read; leave one out")
    for option, value in (("--input", shape), ("--classes", classes)):
        if saved is not None and value is not None:
            raise InputError(
                f"{option} {value} is for measuring a model, but --cost {saved} has its costs; leave one out"
            )


# --- a fleet


def _plan_fleet(
    settings: "RunConfig", world: "World", survey: "Survey", has_costs: bool, out: Path | None, as_json: bool
) -> None:
    """Search the cuts, keep the plan and its page in the folder `out` if there is one, and show the plan."""
    from hsfl.planning.fleet_from_file import with_fleet_file
    from hsfl.planning.plans.fleet_plan import make_plan
    from hsfl.report.page.page_words import describe_plan
    from hsfl.runs.from_plan import check_plan_folder, keep_plan
    from hsfl.runs.planned_extras import planned_extras

    if out is not None:
        check_plan_folder(out)
    if err_console.is_terminal:
        say_compiling(err_console, ["proposed"])
    extras, extra_notes = planned_extras(settings, survey, has_costs)
    with err_console.status("choosing cuts ...") as status:
        answer = make_plan(
            settings,
            world,
            survey.num_samples,
            lambda what, step, best_s: status.update(_search_status(what, step, best_s)),
            extras,
        )
    assumed = describe_plan(with_fleet_file(settings), survey.num_samples.tolist(), survey.data)
    answer = replace(answer, notes=[*survey.notes, *extra_notes, *answer.notes], assumed=assumed)
    page = None
    if out is not None:
        keep_plan(out, asdict(answer), settings)
        page = write_page_beside(out)
    if as_json:
        print_json(asdict(answer))
        return
    show_plan(answer)
    say_page(page)


def _search_status(what: str, step: int, best_s: float) -> str:
    return f"choosing cuts: {what} {step}, best round {seconds(best_s, 4)}"


# --- one device


def _plan_device(
    settings: "RunConfig", world: "World", device: dict[str, float], samples_per_client: int, as_json: bool
) -> None:
    """Say what every cut costs the device and which one is the fastest; the command fails if no cut fits."""
    from hsfl.data.passes import samples_of_round
    from hsfl.planning.plans.fleet_plan import device_table

    train = settings.train
    trained_samples = float(samples_of_round(samples_per_client, train.batch_size, train.local_epochs))
    rows, best = device_table(world, settings, trained_samples, device)
    assumed = _device_assumptions(world, settings, samples_per_client)
    assumed["flops_per_cycle"] = settings.fleet.flops_per_cycle if "cpu" in device else None
    if as_json:
        print_json({"cuts": rows, "best_cut": best, "assumed": assumed})
    else:
        _show_device(rows, best, assumed)
    raise typer.Exit(0 if best is not None else 2)


def read_device(description: str) -> dict[str, float]:
    """A device from a text such as cpu=5e9,memory=1GiB,up=5Mbps,down=20Mbps. In the answer, cpu is in cycles per second,
    compute in FLOPs per second, memory in bits, up and down in bits per second."""
    device: dict[str, float] = {}
    for entry in filter(None, map(str.strip, description.split(","))):
        name, equals, value = (text.strip() for text in entry.partition("="))
        name = known_name("--device field", name.lower(), DEVICE_FIELDS)
        if not equals:
            raise InputError(
                f"--device {name} has no value; write {name}={quantities.KINDS[DEVICE_FIELDS[name]].example}"
            )
        if name in device:
            raise InputError(f"--device gives {name} twice; keep one of them")
        try:
            device[name] = quantities.parse_quantity(DEVICE_FIELDS[name], value)
        except InputError as error:
            raise InputError(f"--device {name} is {value!r}; {error}") from None
    if "cpu" in device and "compute" in device:
        raise InputError("--device gives both cpu and compute, which both mean the speed; keep one of them")
    if missing := [name for name in ("cpu", "up", "down") if name not in device and not _has_speed(name, device)]:
        raise InputError(f"--device lacks {missing[0]}; give cpu=.. or compute=.., memory=.., up=.., down=..")
    return device


def _has_speed(name: str, device: dict[str, float]) -> bool:
    return name == "cpu" and "compute" in device


def _device_assumptions(world: "World", settings: "RunConfig", samples_per_client: int) -> dict[str, Any]:
    """What the answer for one device assumes."""
    return {
        "samples_per_client": samples_per_client,
        "local_epochs": settings.train.local_epochs,
        "batch_size": world.cost.batch_size if world.cost.memory_bits is not None else None,  # for memory_bits
        "num_clients": settings.fleet.num_clients,
        "server_hz": world.servers.main_hz / settings.fleet.num_clients,
        "server_flops_per_s": world.servers.main_hz * world.servers.flops_per_cycle / settings.fleet.num_clients,
        "tau_s": settings.train.tau_s,
    }


def _training_s(row: dict[str, Any]) -> float:
    """The seconds that tau_s limits: training and upload, without the download that follows. row: a row of
    `device_table`."""
    return float(row["round_s"]) - float(row["seconds"]["model_down"])


def _show_device(rows: list[dict[str, Any]], best: int | None, assumed: dict[str, Any]) -> None:
    """Show every cut of `device_table` to people, the best cut in bold."""
    epochs = f", {assumed['local_epochs']:g} local epochs," if assumed["local_epochs"] != 1 else ""
    batch = "weights alone" if assumed["batch_size"] is None else f"a mini-batch of {assumed['batch_size']}"
    out_console.print(
        f"seconds of a round of {assumed['samples_per_client']} samples{epochs}; memory for "
        f"{batch}; the device gets 1/{assumed['num_clients']} of the main server, "
        f"{quantities.quantity_text(assumed['server_flops_per_s'], 'FLOP/s')} (--samples-per-client, train.batch_size, fleet.num_clients)",
    )
    if assumed["flops_per_cycle"] is not None:
        out_console.print(
            f"the device makes {assumed['flops_per_cycle']:g} FLOP per cycle of its cpu (fleet.flops_per_cycle); with compute=.. instead of "
            "cpu=.. it makes what you measured",
            soft_wrap=True,
        )
    names = {"client": "own", "smashed": "up", "server": "server", "gradient": "down"}
    names |= {"model_up": "model\nup", "model_down": "model\ndown"}
    cells = [
        (
            str(row["cut"]),
            *(brief(row["seconds"][name]) for name in names),
            significant(row["round_s"]),
            significant(row["memory_bits"] / 8e6) + ("" if row["fits"] else "!"),
        )
        for row in rows
    ]
    styles = ["bold" if row["cut"] == best else None if row["fits"] else "dim" for row in rows]
    show_table(out_console, ("cut", *names.values(), "round", "memory\nMB"), cells, styles)
    if not all(row["fits"] for row in rows):
        out_console.print("! does not fit into the device's memory")
    if best is None:
        out_console.print("no cut fits; give the device more memory or train with a smaller batch")
        return
    out_console.print(f"cut {best} is the fastest that fits")
    if assumed["tau_s"] is not None:
        out_console.print(_tau_sentence(rows, best, assumed["tau_s"]))


def _tau_sentence(rows: list[dict[str, Any]], best: int, tau_s: float) -> str:
    needed_s = next(_training_s(row) for row in rows if row["cut"] == best)
    if needed_s <= tau_s:
        return f"its training and upload take {seconds(needed_s, 4)}, within train.tau_s = {tau_s:g} s"
    cuts_in_time = [str(row["cut"]) for row in rows if row["fits"] and _training_s(row) <= tau_s]
    way_out = (
        f"in time: cut {', '.join(cuts_in_time)}" if cuts_in_time else "no cut that fits is in time; raise train.tau_s"
    )
    return f"its training and upload take {seconds(needed_s, 4)}, longer than train.tau_s = {tau_s:g} s; {way_out}"
