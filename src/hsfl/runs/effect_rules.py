"""Which settings do nothing beside which others, and why: the table that `effects` looks into."""

from hsfl.config import OWN_MODEL
from hsfl.methods import copy_per_client_names, method
from hsfl.models.recipes import find_recipe
from hsfl.runs.effect_rule import Rule, names
from hsfl.runs.world_rules import ALLOCATION_RULES, FLEET_RULES, NETWORK_RULES

WITH_COPIES = f"leave it out, or choose one of {', '.join(copy_per_client_names())}"

RULES = (
    *FLEET_RULES,
    *NETWORK_RULES,
    *ALLOCATION_RULES,
    Rule(
        names("train", "momentum"),
        lambda c: c.train.optimizer == "momentum",
        'only the optimizer "momentum" uses it; set train.optimizer=momentum, or leave it out',
    ),
    Rule(
        names("train", "step_rounds step_factor"),
        lambda c: c.train.schedule == "step",
        'only the schedule "step" uses it; set train.schedule=step, or leave it out',
    ),
    Rule(
        names("train", "tau_s"),
        lambda c: method(c.framework).timing.tau,
        "the framework drops nobody: its clients wait for each other, or there are none; leave it out",
    ),
    Rule(
        names("train", "clients_per_round drop_rate"),
        lambda c: not method(c.framework).pools_data,
        "the data are on the server, and no client can be away; leave it out",
    ),
    Rule(
        names("train", "proximal_mu choose receivers"),
        lambda c: method(c.framework).copy_per_client,
        f"the framework does not train a copy per client; {WITH_COPIES}",
    ),
    Rule(
        names("train", "choose"),
        lambda c: c.train.clients_per_round is not None,
        "all clients take part in every round; set train.clients_per_round, or leave it out",
    ),
    Rule(
        names("train", "receivers"),
        lambda c: c.train.clients_per_round is not None or c.train.drop_rate > 0,
        "all clients take part in every round; set train.clients_per_round, or leave it out",
    ),
    Rule(
        names("train", "norm_statistics"),
        lambda c: c.model.name == OWN_MODEL or (find_recipe(c.model.name).has_norm and c.model.norm == "batch"),
        "this model has no BatchNorm; leave it out",
    ),
    Rule(
        names("train", "norm_batches"),
        lambda c: c.train.norm_statistics == "estimated",
        "BatchNorm's statistics are averaged; set train.norm_statistics=estimated, or leave it out",
    ),
    Rule(
        names("data", "alpha"),
        lambda c: c.data.partition in ("dirichlet", "quantity_skew"),
        "it is for data.partition = dirichlet or quantity_skew; set one of them, or leave it out",
    ),
    Rule(
        names("data", "classes_per_client"),
        lambda c: c.data.partition == "shards",
        "it is for data.partition = shards; set that, or leave it out",
    ),
    Rule(names("data", "split"), lambda c: c.data.name == "ham10000", "it is for ham10000; leave it out"),
    Rule(
        names("model", "norm stem dropout init_weights"),
        lambda c: c.model.name != OWN_MODEL,
        "the model was given itself, and is trained as it is; leave it out",
    ),
    Rule(
        names("model", "norm"),
        lambda c: c.model.name == OWN_MODEL or find_recipe(c.model.name).has_norm,
        "this model has no BatchNorm to exchange; leave it out",
    ),
    Rule(
        names("model", "stem"),
        lambda c: c.model.name != OWN_MODEL and find_recipe(c.model.name).stem,
        "this model has no stem that shrinks images; leave it out",
    ),
    Rule(
        names("engine", "name"),
        lambda c: method(c.framework).copy_per_client,
        f"the framework trains its clients in turn or in step, in one process; {WITH_COPIES}",
    ),
    Rule(
        names("engine", "workers threads"),
        lambda c: c.engine.name != "inline",
        "everything is trained in one process; set engine.name=workers, or leave it out",
    ),
    Rule(
        names("engine", "address"),
        lambda c: c.engine.name == "ray",
        "it is the address of a Ray cluster; set engine.name=ray, or leave it out",
    ),
)
