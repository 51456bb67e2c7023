"""Which of the legal cuts of a module are kept, and what the units between them are called.

Several legal cuts may have the same weights (of two or more dimensions) before them. Of these, the cut with the
smallest message is kept. Of equally small ones, it is the last cut that does not part an operation from the layer it
belongs to: ReLU and pooling stay with their layer, and a classifier's own dropout stays with the classifier.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hsfl.errors import InputError
from hsfl.models.flow import Crossing, Flow, module_path


@dataclass(frozen=True)
class Cut:
    """A cut of a module, in the graph of training and in that of evaluation."""

    training: Crossing
    evaluation: Crossing


def find_cuts(training: Flow, evaluation: Flow, most_tensors: int = 1) -> list[Cut]:
    """The cuts that are kept, in order. Both graphs must have a cut: before it lie the same tensors that training
    changes."""
    shared = _used(training) & _used(evaluation)
    whole = frozenset().union(*training.needs) & training.trace.matrices
    twins = defaultdict(list)
    for crossing in evaluation.crossings(most_tensors):
        twins[crossing.owned & shared].append(crossing)
    groups = defaultdict(list)
    for crossing in training.crossings(most_tensors):
        if crossing.owned & shared in twins and crossing.weights and crossing.weights != whole:
            groups[crossing.weights].append(crossing)
    chosen = [_best(training, group) for _, group in sorted(groups.items(), key=lambda item: len(item[0]))]
    return [Cut(crossing, _best(evaluation, twins[crossing.owned & shared])) for crossing in chosen]


def _used(flow: Flow) -> frozenset[str]:
    return frozenset().union(*flow.needs) & flow.owned


def _best(flow: Flow, group: Sequence[Crossing]) -> Crossing:
    smallest = min(crossing.bits for crossing in group)
    equal = [crossing for crossing in group if crossing.bits == smallest]
    belongs = [crossing for crossing in equal if not _belongs_to_next(flow, crossing.place)]
    return belongs[-1] if belongs else equal[0]


def _belongs_to_next(flow: Flow, place: int) -> bool:
    """Whether an operation's name has more in common with the next layer with weights than with the one before."""
    path = module_path(flow.order[place])
    last = next((_layer(flow, i) for i in range(place, -1, -1) if _layer(flow, i)), "")
    following = next((_layer(flow, i) for i in range(place + 1, len(flow.order)) if _layer(flow, i)), "")
    return _in_common([path, following]).count(".") > _in_common([path, last]).count(".")


def _layer(flow: Flow, place: int) -> str:
    """The name of the layer whose weights an operation uses; empty if it uses none."""
    names = sorted(flow.needs[place] & flow.trace.matrices)
    return _parent(names[0]) if names else ""


def cuts_after(cuts: Sequence[Cut], wanted: Iterable[str], matrices: frozenset[str]) -> list[Cut]:
    """The cuts that lie right behind these parts of the module."""
    kept, before = [], dict(zip(cuts, [frozenset[str](), *(cut.training.weights for cut in cuts)]))
    for name in wanted:
        inside = {weight for weight in matrices if weight.startswith(f"{name}.")}
        found = [
            c for c in cuts if inside and inside <= c.training.weights and c.training.weights - before[c] <= inside
        ]
        if not found:
            names = ", ".join(_parent(max(cut.training.weights - before[cut])) for cut in cuts)
            raise InputError(f"there is no cut right behind {name!r}; the cuts lie behind {names}")
        kept.append(found[0])
    return [cut for cut in cuts if cut in kept]


def unit_names(units: Sequence[Sequence[str]], is_matrix: Callable[[str], bool]) -> list[str]:
    """A readable name for each unit from the names of its tensors: the part of the module that holds exactly these tensors,
    else what the names of its weights of two or more dimensions have in common, else the layer of the first weight."""
    owner = {name: unit for unit, names in enumerate(units) for name in names}
    taken: dict[str, int] = {}
    found = []
    for unit, names in enumerate(units):
        name = _unit_name(unit, names, [n for n in names if is_matrix(n)] or list(names), owner) or f"unit{unit}"
        taken[name] = taken.get(name, 0) + 1
        found.append(name if taken[name] == 1 else f"{name}~{taken[name]}")
    return found


def _unit_name(unit: int, names: Sequence[str], weights: Sequence[str], owner: Mapping[str, int]) -> str:
    def is_own(prefix: str) -> bool:
        return bool(prefix) and all(u == unit for name, u in owner.items() if name.startswith(prefix))

    for among in (names, weights):
        prefix = _in_common(among)
        if is_own(prefix):
            while is_own(wider := _parent(prefix[:-1]) + ".") and wider != ".":
                prefix = wider
            return prefix[:-1]
    return _parent(weights[0]) if weights else ""


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _in_common(names: Iterable[str]) -> str:
    """The leading parts that all names have in common, each with its dot; the last part of a name counts, too."""
    parts = [f"{name}.".split(".")[:-1] for name in names]
    common = []
    for words in zip(*parts):
        if len(set(words)) > 1:
            break
        common.append(words[0])
    return "".join(f"{word}." for word in common)
