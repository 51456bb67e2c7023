"""Sentences of a page: what was run or planned, what held a client up; and the settings as rows of a table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hsfl.allocation.policy_table import POLICIES, policy_row
from hsfl.config import RunConfig, flatten
from hsfl.formats import count, cut_words, seconds, si
from hsfl.framework_table import METHODS
from hsfl.network.clock import LEVEL, Why
from hsfl.network.latency import training_end_s
from hsfl.report.compared_runs import Look, built_in, display_name

MOST_VALUES = 200  # of one setting, that are shown
HELD_BY = {  # a client's longest phase, as people say it
    "client": "its own computing",
    "smashed": "sending smashed data",
    "server": "the main server's work for it",
    "gradient": "receiving gradients",
    "model_up": "sending its model",
    "model_down": "receiving its model",
}
OPTIMIZERS = {"sgd": "SGD", "momentum": "SGD with momentum", "adam": "Adam"}


def describe_config(
    config: RunConfig,
    look: Look | None = None,
    main_flops_per_s: float | None = None,
    redrawn: bool = False,
    on_machines: bool = False,
    means: tuple[str, str] = ("", ""),
) -> list[str]:
    """A run's config as a few sentences, each about one thing.

    main_flops_per_s: of the main server, where the run kept it. redrawn: whether samples were drawn with replacement.
    on_machines: whether real machines trained, whose data, devices and links no config describes.
    means: the cuts and the allocation in words (`comparison.means_words`).
    """
    if on_machines:
        opening = f"{display_name(config.framework, look)} trains {config.model.name} on real machines"
        devices = count(config.fleet.num_clients, "device")
        opening += f", up to {devices}, each with data of its own."
        return [opening, _training_sentence(config), _real_fleet_sentence(config)]
    return [
        _learning_sentence(config, look, redrawn),
        _training_sentence(config),
        _fleet_sentence(config),
        _network_sentence(config, main_flops_per_s),
        _allocation_sentence(config),
        *([f"In short: {', '.join(means)}."] if any(means) else []),
    ]


def describe_plan(config: RunConfig, num_samples: Sequence[float], data: str) -> list[str]:
    """What a plan takes for granted, as a few sentences. num_samples: [K] training samples of each client. data: what a sample is."""
    fewest, most = round(min(num_samples)), round(max(num_samples))
    samples = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    clients = f"{count(config.fleet.num_clients, 'client')} with {samples} samples each"
    train = config.train
    work = f"A round of {config.model.name} on {data}, among {clients}, batches of {train.batch_size}"
    work += f", {_passes_text(train.local_epochs)}" if train.local_epochs != 1 else ""
    network = config.network
    main_flops_per_s = network.main_hz * network.flops_per_cycle
    return [f"{work}.", f"{_devices_phrase(config)}.", _network_sentence(config, main_flops_per_s)]


def _passes_text(local_epochs: float) -> str:
    """`2 passes over the data`, `0.2 of a pass over the data`."""
    return f"{local_epochs:g} {'passes' if local_epochs > 1 else 'of a pass'} over the data"


def straggler_sentence(held: Why, who: str) -> str:
    """What holds a client up. who: the client, such as `client 3 (cut 2)`."""
    amount, rate = ("FLOP", "FLOP/s") if held.phase in ("client", "server") else ("B", "bit/s")
    return (
        f"The longest phase of {who} is {HELD_BY[held.phase]}: {seconds(held.seconds, 4)} of its {seconds(held.own_s, 4)}, "
        f"{si(held.amount)}{amount} at {si(held.per_second)}{rate}."
    )


def plan_sentence(plan: Any) -> str | None:
    """What holds up the client on which the round of a plan hangs most; None where all clients end together and no weights say on
    whom it hangs. plan: an answer of `hsfl plan`, or its record."""
    if plan.why is None or _ends_level(plan):
        return None
    client = next((client for client in plan.clients if client.client == plan.why.client), None)
    who = (
        f"client {plan.why.client}" if client is None else f"{client.name} (cut {cut_words(client.cut, client.codec)})"
    )
    sentence = straggler_sentence(plan.why, f"{who}, on which the round hangs most,")
    if plan.other_cut is None:
        return sentence
    instead = f"{seconds(plan.other_round_s, 4)} instead of {seconds(plan.round_s, 4)}"
    return f"{sentence} With its best other cut, {plan.other_cut}, the mean round would take {instead}."


def _ends_level(plan: Any) -> bool:
    """Whether all clients of a plan end together, and nothing tells them apart."""
    if any(client.weight is not None for client in plan.clients):
        return False
    ends_s = [training_end_s(client.seconds) for client in plan.clients]
    ends_s = ends_s if plan.crowd is None else list(plan.crowd.finish_s)
    return len(ends_s) > 1 and max(ends_s) - min(ends_s) <= LEVEL * max(ends_s)


def policy_sentences(names: Iterable[str]) -> list[list[str]]:
    """Each policy once, with a sentence that says what it does. names: with those of plugins, which nobody can look up here."""
    return [[name, _policy_sentence(name)] for name in dict.fromkeys(names)]


def _policy_sentence(name: str) -> str:
    if name == "own":
        chosen = {row.title: row.own_policy for row in METHODS.values() if row.built_in and row.own_policy != "even"}
        choices = ", ".join(f"{policy} for {title}" for title, policy in chosen.items())
        return f"What each framework's authors chose: {choices}, even for the others."
    if not set(name.split("+")) <= POLICIES.keys():
        return "A policy of a plugin; the plugin's file says what it does."
    return policy_row(name).sentence


def _learning_sentence(config: RunConfig, look: Look | None, redrawn: bool) -> str:
    data, model = config.data, config.model
    partition = {
        "iid": "evenly",
        "dirichlet": f"unevenly by class (Dirichlet, alpha {data.alpha:g})",
        "shards": f"by class ({data.classes_per_client} classes each)",
        "quantity_skew": f"in unequal amounts (alpha {data.alpha:g})",
        "given": "as the data say",
    }[data.partition]
    division = f"{'drawn with replacement' if redrawn else 'divided'} {partition}"
    subset = f" ({data.limit:,} images of it)" if data.limit is not None else ""
    weights = ", from given weights," if model.init_weights is not None else ""
    clients = count(config.fleet.num_clients, "client")
    return f"{display_name(config.framework, look)} trains {model.name}{weights} on {data.name}{subset}, {division} among {clients}."


def _training_sentence(config: RunConfig) -> str:
    train = config.train
    sentence = f"Up to {train.rounds:,} rounds" if train.budget_s is not None else count(train.rounds, "round")
    sentence += f" within {si(train.budget_s)}s of simulated time" if train.budget_s is not None else ""
    sentence += f", batches of {train.batch_size}"
    sentence += f", {_passes_text(train.local_epochs)} a round" if train.local_epochs != 1 else ""
    sentence += f", {OPTIMIZERS[train.optimizer]} at a rate of {train.lr:g}"
    sentence += f" ({train.schedule} schedule)" if train.schedule != "constant" else ""
    sentence += f"; {train.clients_per_round} clients a round" if train.clients_per_round is not None else ""
    sentence += f"; a client misses a round with probability {train.drop_rate:g}" if train.drop_rate else ""
    late = f"who takes longer than {si(train.tau_s)}s is dropped from the round" if train.tau_s is not None else ""
    return f"{sentence}; {late or 'every round waits for its last client'}. Seed {config.seed}."


def _devices_phrase(config: RunConfig) -> str:
    fleet = config.fleet
    if fleet.file is not None:
        return f"Devices as {fleet.file} lists them"
    if fleet.heterogeneity == 0:
        return f"Equal devices of {si(sum(fleet.cpu_hz) / 2)}cycles/s"
    low = max(fleet.cpu_hz[0], fleet.cpu_floor_hz)
    return f"Devices of {si(low)}cycles/s to {si(fleet.cpu_hz[1])}cycles/s"


def _fleet_sentence(config: RunConfig) -> str:
    fleet, devices = config.fleet, _devices_phrase(config)
    if (row := built_in(config.framework)) is not None and not row.own_cuts:
        return f"{devices}."
    cuts = {
        "auto": "the cuts are the policy's plan",
        "max_cut": "each client holds as many units as it can",
        "fastest": "each client's cut is its fastest under the even allocation",
        "planned": "the cuts are the policy's plan",
    }
    chosen = cuts[fleet.cuts] if isinstance(fleet.cuts, str) else "the cuts were given"
    return f"{devices}; {chosen}."


def _real_fleet_sentence(config: RunConfig) -> str:
    chosen = "are planned from what they measured" if isinstance(config.fleet.cuts, str) else "were given"
    return f"The devices' cuts {chosen}. Simulated time is modelled from what was measured before each round; measured time is real."


def _network_sentence(config: RunConfig, main_flops_per_s: float | None = None) -> str:
    network = config.network
    if network.kind == "measured":
        links = "Links of measured speed"
    else:
        links = f"A radio of {count(network.num_subchannels, 'subchannel')} of {si(network.subchannel_hz)}Hz"
        links += f" in each of {network.cells} cells" if network.cells > 1 else ""
    history = f", played back from {network.history}" if network.history is not None else ""
    scale_note = ""
    if network.sample_scale != 1:
        scale_note = (
            f" The clock charges each sample as {network.sample_scale:.4g}; data sent is that of the training itself."
        )
    server = f"{si(network.main_hz)}cycles/s" if main_flops_per_s is None else f"{si(main_flops_per_s)}FLOP/s"
    return f"{links}{history}; a main server of {server}.{scale_note}"


def _allocation_sentence(config: RunConfig) -> str:
    if config.allocation.policy == "even":
        return "Server cycles, subchannels and power are shared evenly."
    return f"Server cycles, subchannels and power are allocated every round by the policy {config.allocation.policy}."


def subset_notes(scales: Sequence[tuple[str, float]]) -> list[str]:
    """What the bytes of a training on a subset would be for the whole data set. scales: (name, network.sample_scale)."""
    notes = []
    for scale in dict.fromkeys(scale for _, scale in scales if scale != 1):
        names = [name for name, other in scales if other == scale]
        whose = "" if len(names) == len(scales) else f"{_joined(names)}: "
        notes.append(
            f"{whose}Bytes are those of this training on a subset. For the whole data set, what clients and the main server "
            f"exchange would be {scale:.4g} times as much; models would not."
        )
    return notes


def shared_training_notes(runs: Sequence[tuple[str, str | None]]) -> list[str]:
    """A note on runs that took their training from another run. runs: (name, that run's framework or None)."""
    names: dict[str, list[str]] = {}
    for name, trained_as in runs:
        if trained_as is not None:
            names.setdefault(trained_as, []).append(name)
    return [
        f"{_joined(sharing_names)} took the training of a run of {display_name(framework)}; only the clock differs."
        for framework, sharing_names in names.items()
    ]


def _joined(names: Sequence[str]) -> str:
    *earlier, last = dict.fromkeys(names)
    return f"{', '.join(earlier)} and {last}" if earlier else last


def settings_rows(configs: Mapping[str, RunConfig]) -> list[dict[str, Any]]:
    """A row for each setting: its name, its value (or one for each label where they differ), and whether it is a default.

    configs: one for each label. Seeds differ from run to run and are told elsewhere.
    """
    flat = {label: flatten(config.model_dump(mode="json")) for label, config in configs.items()}
    defaults = flatten(RunConfig().model_dump(mode="json"))
    rows = []
    for name in dict.fromkeys([*defaults, *(name for settings in flat.values() for name in settings)]):
        values = {label: settings.get(name) for label, settings in flat.items()}
        first = next(iter(values.values()))
        is_same = all(value == first for value in values.values())
        row: dict[str, Any] = {"name": name, "usual": is_same and name in defaults and first == defaults[name]}
        if is_same:
            row["value"] = setting_text(first)
        else:
            row["values"] = {label: setting_text(value) for label, value in values.items()}
        rows.append(row)
    return rows


def setting_text(value: Any) -> str:
    """The value of a setting as people read it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = ", ".join(map(setting_text, value[:MOST_VALUES]))
        return shown if len(value) <= MOST_VALUES else f"{shown}, ... ({len(value):,} in all)"
    return str(value)
