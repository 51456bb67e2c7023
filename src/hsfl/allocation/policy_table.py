"""The policies, one row each: by which rule each decision is made. Imports no numba; `policies` allocates.

A policy makes four decisions: cuts once, then cycles, subchannels and power every round. A decision that has no rule is optimal,
given the rules. Each baseline changes one decision of the proposed policy; names joined by + change several.

    proposed  everything optimised        rcls  random feasible cuts       scls  the smallest max_cut for all
    ecfa      even server cycles          gtra  greedy subchannels         etra  even server power
    etra_even even server power and even subchannels
    even      even cycles, subchannels and power
    splitfed  scls with everything even   cpsl  the best single cut, greedy subchannels
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from hsfl import plugins
from hsfl.errors import InputError, known_name

POLICY_RULES = {
    "cuts": ("optimised", "random", "smallest", "single"),
    "cycles": ("optimal", "even"),
    "subchannels": ("optimal", "greedy", "even"),
    "power": ("optimal", "even"),
}

RULE_TEXTS = {  # where the rule's name and the decision's are not clear by themselves
    ("cuts", "smallest"): "the smallest max_cut for all",
    ("cuts", "single"): "the best single cut",
    ("cycles", "even"): "even server cycles",
    ("power", "even"): "even server power",
}

RULE_CLAUSES = {  # each rule in words for a reader who does not know the policies
    ("cuts", "random"): "each client gets a random cut that it can hold",
    ("cuts", "smallest"): "all clients get the smallest max_cut",
    ("cuts", "single"): "all clients get the best single cut",
    ("cycles", "even"): "the main server's cycles are divided evenly",
    ("subchannels", "greedy"): "each subchannel goes to the client for which it shortens the round most",
    ("subchannels", "even"): "subchannels are divided evenly",
    ("power", "even"): "the servers' power is divided evenly",
}
NOUNS = {"cycles": "server cycles", "subchannels": "subchannels", "power": "power"}


@dataclass(frozen=True)
class PolicyRow:
    """Four decisions, each by the name of its rule; a decision that is `optimal` (cuts: `optimised`) is left to the solver."""

    name: str
    cuts: str | Callable[..., Any] = "optimised"  # or a function from the samples to a cut for each client
    cycles: str = "optimal"
    subchannels: str = "optimal"
    power: str = "optimal"
    allocator: Callable[..., Any] | None = None  # decides cycles, subchannels and power itself, instead of the rules

    def __post_init__(self) -> None:
        for field, rules in POLICY_RULES.items():
            if not (field == "cuts" and callable(self.cuts)):
                known_name(f"policy {self.name}: rule for {field}", getattr(self, field), rules)

    @property
    def chooses_cuts(self) -> bool:
        """Whether a rule of the policy chooses the cuts; else they are searched, or may be given."""
        return self.cuts != "optimised"

    @property
    def needs_rounds(self) -> bool:
        """Whether cuts are tried on rounds; two rules look at nothing but the cuts that clients may take."""
        return self.cuts not in ("random", "smallest")

    @property
    def is_optimal(self) -> bool:
        """Whether no rule decides any part of a round."""
        return self.allocator is None and (self.cycles, self.subchannels, self.power) == ("optimal",) * 3

    @property
    def words(self) -> str:
        """What the policy does by rule, in a few words."""
        if self.allocator is not None:
            return "a plugin's own allocation"
        decisions = [
            RULE_TEXTS.get((field, rule), f"{rule} {field}" if isinstance(rule, str) else f"{field} of its own")
            for field in POLICY_RULES
            if (rule := getattr(self, field)) not in ("optimal", "optimised")
        ]
        return ", ".join(decisions) or "everything optimised"

    @property
    def sentence(self) -> str:
        """What the policy does, for a reader who does not know its name."""
        if self.is_optimal and not self.chooses_cuts:
            return "Everything is optimised: cuts once, then server cycles, subchannels and power in every round."
        if self.allocator is not None:
            clauses, optimal = ["a plugin's function allocates server cycles, subchannels and power"], []
        else:
            clauses = [RULE_CLAUSES[field, rule] for field in NOUNS if (rule := getattr(self, field)) != "optimal"]
            optimal = [noun for field, noun in NOUNS.items() if getattr(self, field) == "optimal"]
        if self.chooses_cuts:
            own_cuts = "a plugin's function chooses the cuts"
            clauses.insert(0, RULE_CLAUSES["cuts", self.cuts] if isinstance(self.cuts, str) else own_cuts)
        if optimal:
            *most, last = optimal
            nouns = f"{', '.join(most)} and {last}" if most else last
            clauses.append(f"{nouns} {'is' if nouns == 'power' else 'are'} optimised")
        clauses += [] if self.chooses_cuts else ["cuts are planned or given"]
        text = "; ".join(clauses)
        return f"{text[0].upper()}{text[1:]}."

    def refuse_without_radio(self) -> Self:
        """The policy itself; an error where it needs the scenarios of a radio, which measured links do not have."""
        if callable(self.cuts) or self.allocator is not None:
            raise InputError(f"policy {self.name} is for a radio but network.kind is 'measured'; choose another policy")
        return self


POLICIES = {
    "proposed": PolicyRow("proposed"),
    "rcls": PolicyRow("rcls", cuts="random"),
    "scls": PolicyRow("scls", cuts="smallest"),
    "ecfa": PolicyRow("ecfa", cycles="even"),
    "gtra": PolicyRow("gtra", subchannels="greedy"),
    "etra": PolicyRow("etra", power="even"),
    "etra_even": PolicyRow("etra_even", subchannels="even", power="even"),
    "even": PolicyRow("even", cycles="even", subchannels="even", power="even"),
    "splitfed": PolicyRow("splitfed", cuts="smallest", cycles="even", subchannels="even", power="even"),
    "cpsl": PolicyRow("cpsl", cuts="single", subchannels="greedy"),
}


WAY_OUT = ", or join names with +; allocation.policy also takes auto, and own for what each framework's authors chose"


def policy_row(name: str, options: Any = None) -> PolicyRow:
    """A policy's row by name; `scls+ecfa` takes the decisions of both. options: those of a config, for registered policies."""
    plain = PolicyRow(name)
    result = plain
    for single_name in name.split("+"):
        row = _with_options(POLICIES[known_name("policy", single_name, POLICIES, WAY_OUT)], options)
        for field in (*POLICY_RULES, "allocator"):
            if getattr(row, field) != getattr(plain, field):
                if getattr(result, field) not in (getattr(plain, field), getattr(row, field)):
                    raise InputError(f"policy is {name!r}, but {field} can follow one rule only; leave one of them out")
                result = replace(result, **{field: getattr(row, field)})
    if result.allocator is not None and (result.cycles, result.subchannels, result.power) != ("optimal",) * 3:
        raise InputError(f"policy is {name!r}, but one of these allocates cycles, subchannels and power itself")
    return result


def _with_options(row: PolicyRow, options: Any) -> PolicyRow:
    """A registered policy with its options; a built-in policy as it is."""
    if row.name not in plugins.OPTIONS or plugins.REGISTERED.get(("policy", row.name)) is None:
        return row
    value = plugins.default_options(row.name) if options is None else options.of(row.name)
    bound: dict[str, Any] = {
        field: partial(function, options=value)
        for field in ("cuts", "allocator")
        if callable(function := getattr(row, field))
    }
    return replace(row, **bound)
