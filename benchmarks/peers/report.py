"""What the starts of `run.py` say: ratios with intervals, a Markdown table and a figure for docs/benchmarks.md.

A ratio is the seconds of a bare loop's round over the seconds of the peer's round beside it. Its interval is a bootstrap of the median in
two stages: starts are drawn, then pairs within each start, since rounds of one start have its luck in common. A peer is ahead of the
bare loop, or behind it, where the interval excludes 1. HSFL and a peer, which never run side by side, are compared by their ratios to the
same kind of bare loop; that interval draws both.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
DOCUMENT, TABLE, FIGURE = (
    ROOT / path for path in ("docs/benchmarks.md", "docs/results/peers.json", "docs/figures/peers.png")
)
BEGIN, END = "<!-- made by benchmarks/peers/run.py report: begin -->", "<!-- end -->"
NOT_MEASURED = "*Not yet measured on a quiet machine.*"
DRAWS = 10_000
FEWEST_PAIRS = 5  # of which anything is said
WORDS = {
    "resnet18": "FL, ResNet-18, 3x32x32, 10 clients of 768, batch 256, all in a round",
    "cnn": "FL, CNN of 582,026 parameters, 1x28x28, 500 clients of 20, batch 10, 50 a round",
}
Starts = list[np.ndarray]  # a ratio for each pair, [pairs], of each start


def resampled_medians(starts: Starts, rng: np.random.Generator) -> np.ndarray:
    """Medians over starts and pairs that are drawn with replacement, [DRAWS]. All starts have as many pairs."""
    ratios = np.stack(starts)  # [starts, pairs]
    drawn_starts = rng.integers(0, ratios.shape[0], (DRAWS, ratios.shape[0], 1))
    drawn_pairs = rng.integers(0, ratios.shape[1], (DRAWS, *ratios.shape))
    return np.median(ratios[drawn_starts, drawn_pairs].reshape(DRAWS, -1), axis=1)


def interval(medians: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of resampled medians."""
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


def verdict(low: float, high: float, *num_pairs: int) -> str:
    """Only an interval that excludes 1 says who is ahead, and only where there are enough pairs of each side."""
    if min(num_pairs) < FEWEST_PAIRS:
        return "too few rounds"
    return "ahead" if low > 1 else "behind" if high < 1 else "not told apart"


class Row:
    """All starts of one variant in one memory format on one work."""

    def __init__(
        self, variant: dict[str, Any], work: dict[str, Any], memory_format: str, starts: list[dict[str, Any]]
    ) -> None:
        self.variant, self.work, self.memory_format, self.starts = variant, work, memory_format, starts
        samples = work["per_round"] * work["num_samples"]
        self.rates = np.array([samples / pair["peer"] for start in starts for pair in start["pairs"]])
        formats = [name for name in starts[0]["pairs"][0] if name != "peer"]
        self.ratios = {name: [np.array([p[name] / p["peer"] for p in s["pairs"]]) for s in starts] for name in formats}
        self.medians = {
            name: resampled_medians(ratios, np.random.default_rng(0)) for name, ratios in self.ratios.items()
        }

    def ratio(self, bare_format: str) -> float:
        return float(np.median(np.concatenate(self.ratios[bare_format])))

    @property
    def faster_bare(self) -> str:
        """The memory format in which the bare loop beside this peer was faster: the peer's ratio to it is the smaller one."""
        return min(self.ratios, key=self.ratio)

    @property
    def verdict(self) -> str:
        return verdict(*interval(self.medians[self.faster_bare]), len(self.rates))

    @property
    def weights(self) -> str:
        """The largest difference of a weight from the plain FedAvg, beside the largest change of a weight."""
        checked = [start for start in self.starts if "largest_difference" in start]
        if not checked:
            return "-"
        difference, change = checked[0]["largest_difference"], checked[0]["largest_change"]
        return "0" if difference == 0 else f"{difference:.1e} of {change:.1e}"

    def cells(self) -> list[str]:
        ratios = [
            f"{self.ratio(name):.3f} [{low:.3f}, {high:.3f}]"
            for name in ("contiguous", "channels_last")
            for low, high in [interval(self.medians[name])]
        ]
        first = [start["first_update_s"] for start in self.starts]
        return [
            self.variant["title"], self.variant["tuning"] + f"; {self.memory_format.replace('_', '-')}",
            f"{np.median(self.rates):,.0f} ({self.rates.min():,.0f} to {self.rates.max():,.0f})", *ratios,
            self.verdict, f"{len(self.rates)} in {len(self.starts)}",
            f"{max(start['peak_bytes'] for start in self.starts) / 1e6:,.0f} MB",
            f"{np.median(first):.1f} s ({min(first):.1f} to {max(first):.1f})", self.weights,
        ]  # fmt: skip


HEAD = (
    "what", "settings", "samples/s: median (range)", "of the contiguous bare loop", "of the channels-last bare loop",
    "beside the faster bare loop", "rounds in starts", "peak memory", "to the first update", "weights differ by",
)  # fmt: skip


def rows_of(result: dict[str, Any], work: str) -> list[Row]:
    """The rows of a work in the order of the variants; starts that failed are left out."""
    rows = []
    for name, variant in result["variants"].items():
        starts = [s for s in result["starts"] if s["work"] == work and s["variant"] == name and "failed" not in s]
        for memory_format in dict.fromkeys(start["memory_format"] for start in starts):
            own = [start for start in starts if start["memory_format"] == memory_format]
            rows.append(Row(variant, result["works"][work], memory_format, own))
    return rows


def compared(rows: list[Row]) -> Iterator[str]:
    """HSFL beside each peer, one sentence for each pair that trains as many processes."""
    ours = [row for row in rows if row.variant["peer"] == "hsfl" and row.variant["settings"].get("framework") == "fl"]
    peers = [row for row in rows if row.variant["peer"] != "hsfl"]
    for mine in ours:
        for peer in (row for row in peers if row.variant["processes"] == mine.variant["processes"]):
            bare = mine.faster_bare
            low, high = interval(mine.medians[bare] / np.random.default_rng(1).permutation(peer.medians[bare]))
            ratio = mine.ratio(bare) / peer.ratio(bare)
            words = {
                "ahead": "is ahead of",
                "behind": "LOSES to",
                "not told apart": "cannot be told apart from",
                "too few rounds": "(too few rounds to say) beside",
            }
            yield (
                f"- {mine.variant['title']} ({mine.memory_format.replace('_', '-')}) {words[verdict(low, high, len(mine.rates), len(peer.rates))]} {peer.variant['title']} "
                f"({peer.memory_format.replace('_', '-')}): {ratio:.2f} times its speed [{low:.2f}, {high:.2f}]."
            )


def block(result: dict[str, Any]) -> str:
    """The Markdown of the generated block."""
    machine, versions = result["machine"], result["versions"]
    loads = [start["load"][0] for start in result["starts"]]
    lines = [
        f"Measured {result['measured']} on {machine['cores']} cores of {machine['processor']}, {machine['memory_gb']} GB, {machine['system']}; "
        f"load before a start {min(loads):.1f} to {max(loads):.1f}. "
        + "; ".join(f"{peer}: {', '.join(f'{k} {v}' for k, v in found.items())}" for peer, found in versions.items())
        + ".",
        "",
        f"![Ratios to bare loops]({FIGURE.relative_to(DOCUMENT.parent).as_posix()})",
    ]  # fmt: skip
    for work in result["works"]:
        rows = rows_of(result, work)
        lines += [
            "",
            f"**{WORDS.get(work, work)}**",
            "",
            f"| {' | '.join(HEAD)} |",
            "| " + " | ".join(["---"] * len(HEAD)) + " |",
        ]
        lines += [f"| {' | '.join(row.cells())} |" for row in rows]
        lines += ["", *compared(rows)]
        behind = [r.variant["title"] for r in rows if r.variant["name"].startswith("hsfl") and r.verdict == "behind"]
        if behind:
            lines += ["", f"Behind the faster bare loop: {', '.join(behind)}."]
    if result["not_installed"]:
        lines += ["", f"Not installed, and so not measured: {', '.join(result['not_installed'])}."]
    for start in (start for start in result["starts"] if "failed" in start):
        lines += ["", f"Failed: {start['variant']} on {start['work']}: {start['failed']}."]
    return "\n".join(lines)


def write_block(text: str, document: Path = DOCUMENT) -> None:
    """Put the text between the two marks of the document."""
    before, _, rest = document.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{document} has no line {BEGIN} followed by {END}"
    document.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def draw(result: dict[str, Any], path: Path = FIGURE) -> None:
    """For each work: the ratio of every row to the faster bare loop, with its interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    works = list(result["works"])
    figure, axes = pyplot.subplots(1, len(works), figsize=(6.4 * len(works), 4.8), squeeze=False, layout="constrained")
    for axis, work in zip(axes[0], works):
        rows = rows_of(result, work)[::-1]
        for place, row in enumerate(rows):
            low, high = interval(row.medians[row.faster_bare])
            color = "C0" if row.variant["peer"] == "hsfl" else "C7"
            axis.plot([low, high], [place, place], color=color, linewidth=2)
            axis.plot(row.ratio(row.faster_bare), place, "o" if row.variant["processes"] == 1 else "s", color=color)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_yticks(range(len(rows)), [row.variant["title"] for row in rows])
        axis.set_xlabel("speed, as a part of the faster bare loop's")
        axis.set_title(WORDS.get(work, work), fontsize=9)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_report(result: dict[str, Any]) -> None:
    """The block, the figure, and the numbers themselves, into docs."""
    write_block(block(result))
    draw(result)
    TABLE.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {', '.join(str(path.relative_to(ROOT)) for path in (DOCUMENT, FIGURE, TABLE))}")
