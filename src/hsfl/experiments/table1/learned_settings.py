"""Which settings change what a training learns, and which change its seconds alone.

Shipped trainings and cuts count as long as the settings behind them agree. Compared are the settings that matter for them, by name,
so that a new setting, or a new default of another one, does not make hours of training void. Every setting stands in one of these
tables (a test holds that), so that whoever adds one decides.
"""

from typing import Any

from hsfl.config import RunConfig, flatten
from hsfl.planning.fair_defaults import without_auto

LEARNED = (  # by every framework
    *("seed", "framework", "plugins", "options."),
    *("model.name", "model.input", "model.norm", "model.stem", "model.dropout", "model.init_weights"),
    *("data.name", "data.partition", "data.alpha", "data.classes_per_client", "data.min_samples", "data.limit"),
    *("data.limit_test", "data.image_size", "data.split", "data.augment", "data.target_column", "data.feature_columns"),
    *("data.client_column", "data.client_file", "data.test_file", "data.test_fraction", "data.block", "data.tokenizer"),
    *("data.text_split", "data.normalise", "data.sha256"),
    *("fleet.num_clients", "train.batch_size", "train.local_epochs", "train.optimizer", "train.lr", "train.momentum"),
    *("train.weight_decay", "train.schedule", "train.step_rounds", "train.step_factor", "train.proximal_mu"),
    *("train.norm_statistics", "train.norm_batches"),  # what is tested, not what is trained on
    *("train.clients_per_round", "train.choose", "train.drop_rate", "train.tau_s", "train.task", "train.loss"),
    *("train.clip_norm", "train.average", "train.trim", "attack.", "link."),
)
LATER = (  # came when trainings and cuts were shipped already
    *("train.clip_norm", "train.average", "train.trim", "attack.", "link."),
    *("network.server", "network.service", "network.delay_s", "network.swap_bps", "network.swap_delay_s"),
    *("network.open_s", "network.average_s", "network.test_s", "network.checkpoint_s", "network.test_beside"),
)
CUTS = (  # decide the cuts, which change what a framework learns unless it keeps a copy of the server side for each client
    *(
        "fleet.seed",
        "fleet.cuts",
        "fleet.one_cut",
        "fleet.max_cut",
        "fleet.min_cut",
        "fleet.cpu_hz",
        "fleet.cpu_floor_hz",
    ),
    *("fleet.flops_per_cycle", "fleet.max_power_w", "fleet.heterogeneity", "fleet.storage_bits", "fleet.storage"),
    "fleet.file",
)
CLOCK = (  # decide seconds, and with them the best cuts
    *("network.kind", "network.cells", "network.cells_m", "network.num_subchannels", "network.subchannel_hz"),
    *("network.noise_w", "network.fading", "network.gain_floor", "network.radius_m", "network.positions_m"),
    *("network.main_m", "network.edge_m", "network.path_loss_exponent", "network.path_loss_db", "network.main_up_bps"),
    *("network.main_down_bps", "network.edge_up_bps", "network.edge_down_bps", "network.main_hz"),
    *("network.flops_per_cycle", "network.main_power_w", "network.edge_power_w", "network.speed_std"),
    *("network.server", "network.service", "network.delay_s", "network.swap_bps", "network.swap_delay_s"),
    *("network.open_s", "network.average_s", "network.test_s", "network.checkpoint_s", "network.test_beside"),
    *("network.history", "network.sample_scale", "network.full_batches", "train.receivers"),
    *("allocation.policy", "allocation.cuts", "allocation.samples", "allocation.sharing", "allocation.gap"),
    *("allocation.population", "allocation.patience"),
)
NEITHER = (  # where and for how long a run is made, and what it writes
    *("device", "data.dir", "train.rounds", "train.budget_s", "train.eval_every", "allocation.time_limit_s"),
    *("allocation.plan_time_limit_s", "log.", "engine.", "model.certify", "model.memory_format"),
)


def learned_settings(config: RunConfig, cuts_matter: bool) -> dict[str, Any]:
    """The settings that change what is learned in a round. cuts_matter: whether cuts do, as they do unless the framework keeps a
    copy of the server side for each client."""
    names = (*LEARNED, *CUTS) if cuts_matter else LEARNED
    more = (
        {"train.rounds": config.train.rounds} if config.train.schedule == "cosine" else {}
    )  # its rates depend on them
    return _chosen(without_auto(config), names) | more


def clock_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that change how long rounds take and which cuts are the best."""
    trained = ("train.batch_size", "train.local_epochs", "train.optimizer", "train.tau_s", "train.clients_per_round")
    data = ("data.name", "data.image_size", "data.partition", "data.alpha", "data.limit", "data.min_samples", "seed")
    models = ("model.name", "model.input", "model.norm", "model.stem", "fleet.num_clients", *trained)
    return _chosen(config, (*models, *data, *CUTS, *CLOCK))


def _chosen(config: RunConfig, names: tuple[str, ...]) -> dict[str, Any]:
    flat = flatten(config.model_dump(mode="json"))
    if flat["fleet.one_cut"] == "auto":
        flat["fleet.one_cut"] = None  # as it is in the hashes of cuts that were chosen before `auto` had a name
    chosen = {name: value for name, value in flat.items() if name in names or name.startswith(_sections(names))}
    usual = flatten(RunConfig().model_dump(mode="json"))
    return {name: value for name, value in chosen.items() if not _is_later(name) or value != usual[name]}


def _is_later(name: str) -> bool:
    """Whether a setting is left out where it has its default, so that the hashes of shipped trainings stay what they are."""
    return name in LATER or name.startswith(_sections(LATER))


def _sections(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name.endswith("."))
