"""`hsfl measure`: this machine as an entry of a fleet file."""

import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsfl.commands.console import (
    CLASSES,
    SHAPE,
    Changes,
    Json,
    Plugins,
    err_console,
    one_line_errors,
    out_console,
    print_json,
    quoted,
)
from hsfl.commands.cost import read_shape
from hsfl.errors import InputError
from hsfl.formats import size
from hsfl.quantities import parse_quantity, quantity_text

if TYPE_CHECKING:
    from hsfl.config import RunConfig
    from hsfl.models.units import SplitModel
    from hsfl.training.speed import Speed

commands = typer.Typer()
LINK_S = 4.0  # for tries of a link
UNSTEADY = 0.25  # spread above which other work was likely in the way


@commands.command(
    "measure",
    epilog="Examples:\n\n"
    "- `hsfl measure --model resnet18 --input 3,64,64 -o fleet.toml --name ward-1 --up 100Mbps --down 100Mbps`\n"
    "- `hsfl measure my.toml --server --edge edge.example.org:7434 --certs certs/main -o fleet.toml` on the main server\n"
    "- `hsfl measure my.toml --main main.example.org:7433 --certs certs/ward-1 -o fleet.toml` asks the main server that runs there for the link\n"
    "- `hsfl measure` prints an entry and writes nothing\n\n"
    "docs/fleet.md goes from six workstations to a plan and a run.",
)
def measure_command(
    config: Annotated[str | None, typer.Argument(help="A config whose model and batches are trained.")] = None,
    changes: Changes = None,
    model: Annotated[str | None, typer.Option(help="A model's name; short for --set model.name=NAME.")] = None,
    input: Annotated[
        str | None,
        typer.Option(help="Channels, height and width of an image; else those of the config's data, else 3,32,32."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=2, max=10**6, help="Number of classes; else those of the config's data, else 10.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long to train.")] = 5.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The fleet file, .toml or .json, to make or to add to.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The device's name; else this machine's.")] = None,
    up: Annotated[
        str | None, typer.Option(help="The device's link to the servers, such as 100Mbps, as you measured it.")
    ] = None,
    down: Annotated[str | None, typer.Option(help="The device's link from the servers.")] = None,
    main: Annotated[
        str | None,
        typer.Option(
            help="The running main server's HOST:PORT: the rates and the delay of the link to it are measured, too."
        ),
    ] = None,
    certs: Annotated[
        Path | None,
        typer.Option(
            help="For --main: this device's folder of certificates, which gives its name, too; for --edge: the main server's."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="For --main and --edge: no certificates, as the server was started.")
    ] = False,
    server: Annotated[
        bool, typer.Option("--server", help="This machine is the main server: parts of a round's end are timed, too.")
    ] = False,
    edge: Annotated[
        str | None,
        typer.Option(
            help="For --server: the running edge server's HOST:PORT, to measure the link between the servers."
        ),
    ] = None,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Train a model on this machine for some seconds and write what it reached as a device of a fleet file.

    The speed is FLOPs of training per second, and the profile is seconds of each unit, which a plan for measured links sums up to a
    cut's. A speed from a processor's cycles, at one FLOP each, or from its data sheet can be ten times too high or too low. Nothing
    else should run meanwhile.
    """
    from hsfl import fleet_file  # here, because other commands need not wait for it

    with one_line_errors():
        device_name = name if name is not None else _name_of(certs, server) or platform.node() or "device"
        _check_options(device_name, server, {"--name": name, "--up": up, "--down": down, "--main": main})
        _check_link_options(main, edge, server, up, down, certs, insecure)
        if out is not None:
            if out.suffix not in (".toml", ".json"):
                raise InputError(f"-o is {out}; a fleet file is .toml or .json, such as fleet.toml")
            fleet_file.check_device_is_new(out, None if server else device_name)
        from hsfl.config import read_config
        from hsfl.files import write_atomic
        from hsfl.models.recipes import memory_format_of
        from hsfl.models.zoo import build
        from hsfl.runs.prepare import find_device
        from hsfl.training.speed import keep_freed_memory, machine_memory_bits, training_speed

        all_changes = [*(changes or []), *([f"model.name={quoted(model)}"] if model is not None else [])]
        settings = read_config(config, all_changes, plugin or ())
        model_settings, train, device = settings.model, settings.train, find_device(settings.device)
        shape, classes = _sample_shape(
            settings, config is not None, None if input is None else read_shape(input), classes
        )
        options = settings.options.of(model_settings.name)
        split_model = build(
            model_settings.name,
            shape,
            classes,
            model_settings.norm,
            model_settings.stem,
            dropout=model_settings.dropout,
            options=options,
        )
        keep_freed_memory()  # as processes that train do
        link: dict[str, str | None] = {"up": up, "down": down}
        if (address := edge or main) is not None:
            with err_console.status(f"trying the link to {address} ..."):
                _link(address, device_name, certs, server)
        with err_console.status(f"training {model_settings.name} for {seconds:g} s ..."):
            laid_out = memory_format_of(model_settings)
            speed = training_speed(split_model.to(device), shape, classes, train, seconds, memory_format=laid_out)
        if address is not None:  # now, since other nodes that are measured at the same time have started, too
            with err_console.status(f"measuring the link to {address} for {LINK_S:g} s or more ..."):
                link = _link(address, device_name, certs, server, LINK_S)
        if server:
            with err_console.status("timing the end of a round ..."):
                link |= _ending(settings, split_model, shape, classes, Path() if out is None else out.parent)
        with err_console.status("timing codecs ..."):
            coding_s = _coding_seconds(settings, speed, server)
        memory_bits = machine_memory_bits()
        profile = fleet_file.Profile(
            model_settings.name,
            train.batch_size,
            speed.unit_forward_s,
            speed.unit_backward_s,
            speed.step_s,
            coding_s,
        )
        entry = fleet_file.device_entry(device_name, speed.flops_per_s, memory_bits, link, profile)
        if server:
            entry = {key: entry[key] for key in ("compute", *fleet_file.ENDING, "profile") if key in entry}
        note = f"{model_settings.name} at {'x'.join(map(str, shape))}, batches of {train.batch_size}"
        if out is not None:
            text = fleet_file.with_device_added(out, entry, server, note)
            write_atomic(out, lambda scratch: scratch.write_text(text, "utf-8"))
    if as_json:
        print_json({"entry": entry, "flops_per_s": speed.flops_per_s, "step_s": speed.step_s, "num_steps": speed.num_steps,
                    "spread": speed.spread, "samples_per_s": speed.samples_per_s, "memory_bits": memory_bits})  # fmt: skip
        return
    _show_speed(speed, note, memory_bits)
    if out is None:
        text = fleet_file.entry_toml(entry, "[main_server]" if server else "[[device]]", note)
        out_console.print(text.rstrip(), soft_wrap=True)
    else:
        who = "the main server" if server else f"device {device_name!r}"
        out_console.print(f"wrote {who} to {out}", soft_wrap=True)


def _sample_shape(
    settings: "RunConfig", has_config: bool, shape: tuple[int, ...] | None, classes: int | None
) -> tuple[tuple[int, ...], int]:
    """The shape of a sample and the number of classes: as asked for, else as the config's data have them; without a config,
    SHAPE and CLASSES."""
    shape = shape or settings.model.input
    if shape is not None and classes is not None:
        return tuple(shape), classes
    if not has_config and not settings.data.model_fields_set:
        return tuple(shape or SHAPE), classes or CLASSES
    from hsfl.runs.client_data import sample_facts

    try:
        data_shape, data_classes = sample_facts(settings)
    except InputError as error:  # a server holds no data
        data_shape, data_classes = SHAPE, CLASSES
        err_console.print(
            f"warning: samples of 3x32x32 in 10 classes are trained, since those of the config cannot be read ({error}); "
            "--input and --classes give others",
            soft_wrap=True,
        )
    return tuple(shape or data_shape), classes or data_classes


def _name_of(certs: Path | None, server: bool) -> str | None:
    """The name in a client's bundle, or in the main server's."""
    if certs is None:
        return None
    from hsfl.deploy.trust.bundle import check_bundle  # here, because it needs the extra deploy

    return check_bundle(certs, "main" if server else "client").identity.name


def _check_link_options(
    main: str | None,
    edge: str | None,
    server: bool,
    up: str | None,
    down: str | None,
    certs: Path | None,
    insecure: bool,
) -> None:
    if edge is not None and not server:
        raise InputError(f"--edge={edge} is for the main server; give --server too, or leave it out")
    if main is None and edge is None:
        if certs is not None or insecure:
            raise InputError(
                "--certs and --insecure are for --main HOST:PORT (or --edge of the main server); give that too, or leave them out"
            )
    elif (certs is None) != insecure:
        raise InputError(
            f"{'--main' if edge is None else '--edge'} needs --certs, the folder that hsfl certs add wrote for this machine; or "
            "--insecure, without certificates"
        )
    if main is not None and (up or down):
        raise InputError("--main measures the link that --up and --down tell; leave one of them out")


def _link(address: str, name: str, certs: Path | None, of_servers: bool, seconds: float = 0.0) -> dict[str, str | None]:
    """Rates and delay of the link to a main server that runs, or from a main server to its edge server, as text with units. Sums cross the
    latter both ways at once, so the slower direction counts."""
    from hsfl.deploy.wire.link_probe import probe_link  # here, because it needs the extra deploy

    link = probe_link(address, "main" if of_servers else name, certs, "edge" if of_servers else "main", seconds)
    delay = f"{1e3 * link.delay_s:.3g}ms"
    if of_servers:
        return {"swap": quantity_text(min(link.up_bps, link.down_bps), "bps"), "swap_delay": delay}
    rates = {key: quantity_text(rate_bps, "bps") for key, rate_bps in (("up", link.up_bps), ("down", link.down_bps))}
    return {**rates, "delay": delay}


def _ending(
    settings: "RunConfig", model: "SplitModel", shape: tuple[int, ...], classes: int, folder: Path
) -> dict[str, str]:
    """What this machine takes for its parts of the end of a round, as text with units. A test is timed where the config's test samples
    are here: a server may hold no data."""
    from hsfl.runs.client_data import read_data
    from hsfl.runs.prepare import make_images
    from hsfl.runs.server_timing import time_server_parts

    test, as_measured = None, settings.model.model_copy(update={"input": shape})
    if settings.data.model_fields_set:
        with suppress(InputError):
            test = make_images(settings.model_copy(update={"model": as_measured}), read_data(settings), "test")
    fits = test is not None and test.shape == shape
    parts_s = time_server_parts(model, folder, test if fits else None, classes)
    return {part: f"{1e3 * part_s:.3g}ms" for part, part_s in parts_s.items()}


def _coding_seconds(settings: "RunConfig", speed: "Speed", server: bool) -> dict[str, tuple[float, float]]:
    """Seconds to encode and decode a number of the model's largest smashed data, by codec: all that there are, and those of the config."""
    from hsfl.codec_table import DOWN, UP, used_codecs, usual_codecs
    from hsfl.training.codecs.coding_speed import coding_seconds

    direction = DOWN if server else UP
    choices = dict.fromkeys([*usual_codecs(direction), *used_codecs(settings.link)])
    return coding_seconds(choices, speed.largest_message, direction)


def _check_options(device_name: str, server: bool, given: dict[str, str | None]) -> None:
    for option, value in given.items():
        if server and value is not None:
            raise InputError(
                f"{option} {value} describes a client, but --server is the main server; leave one of them out"
            )
    if not device_name.strip() or not device_name.isprintable() or len(device_name) > 60:
        raise InputError(f"--name is {device_name!r}; give up to 60 characters, such as ward-1")
    for option in ("--up", "--down"):
        value = given[option]
        try:
            parse_quantity("rate", value) if value is not None else None
        except InputError as error:
            raise InputError(f"{option} is {value!r}; {error}") from None


def _unit_sentence(speed: "Speed") -> str:
    """How unequal the units are."""
    unit_s = [forward_s + backward_s for forward_s, backward_s in zip(speed.unit_forward_s, speed.unit_backward_s)]
    longest = max(range(len(unit_s)), key=lambda unit: unit_s[unit])
    return f"of its {len(unit_s)} units number {longest + 1} takes longest, {unit_s[longest] / sum(unit_s):.0%} of the step"


def _show_speed(speed: "Speed", note: str, memory_bits: float | None) -> None:
    import torch  # here, because it takes seconds to load

    threads = torch.get_num_threads()
    sentences = [
        f"{note}: {speed.num_steps} steps of training on {threads} thread{'s' if threads > 1 else ''} (OMP_NUM_THREADS changes that)",
        f"a step takes {speed.step_s:.4g} s (half of them {speed.low_s:.4g} to {speed.high_s:.4g} s), that is "
        f"{speed.samples_per_s:.4g} samples/s of {quantity_text(speed.flops_per_sample, 'FLOP')} each, forward and backward",
        f"compute: training reaches {quantity_text(speed.flops_per_s, 'FLOP/s')}; {_unit_sentence(speed)}",
    ]
    if memory_bits is not None:
        model_memory = f"training the whole model in such batches takes {size(speed.memory_bits / 8)}"
        sentences.append(f"memory: {size(memory_bits / 8)} in all; {model_memory}")
    for sentence in sentences:
        out_console.print(sentence, soft_wrap=True)
    if speed.spread > UNSTEADY:
        out_console.print(
            f"warning: the middle half of the steps spreads over {speed.spread:.0%} of the median, so something else was "
            "running; stop it and measure again, or measure longer with --seconds",
            soft_wrap=True,
        )
