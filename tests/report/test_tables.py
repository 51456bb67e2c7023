"""Summary tables as CSV and LaTeX, checked by their structure: no TeX is installed for it."""

import copy
import csv
import re
from pathlib import Path

import pytest

from hsfl.report.comparison_summary import read_comparison
from hsfl.report.curves import Estimate, estimate
from hsfl.report.tables import (
    SummaryTable,
    ValueCell,
    csv_cells,
    interval_text,
    latex_table,
    latex_text,
    spread_note,
    write_summary_tables,
)
from tests.report.fabricated import records, write_run

NASTY = r"R&D 50% a_b #1 {x} $5 ~ ^ C:\new | <b>"


def columns_of(line: str) -> int:
    """How many cells a line of a tabular has."""
    return len(re.findall(r"(?<!\\)&", line)) + 1


def check_latex(text: str) -> list[str]:
    """The lines between the rules, after a check of what every table must have."""
    lines = [line.strip() for line in text.splitlines()]
    assert [lines.count(rf"\{rule}rule") for rule in ("top", "mid", "bottom")] == [1, 1, 1]
    top, middle, bottom = (lines.index(rf"\{rule}rule") for rule in ("top", "mid", "bottom"))
    assert top + 2 == middle < bottom
    (spec,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    rows = [lines[top + 1], *lines[middle + 1 : bottom]]
    assert all(row.endswith(r" \\") for row in rows)
    assert {columns_of(row) for row in rows} == {len(spec)}
    assert not any(row.startswith(("[", "*")) for row in rows)  # would be an option of the line before
    for sign in "%#$_":
        body = re.sub(r"\$(\\pm|\\dagger|[-<>])\$", "", "\n".join(lines[1:]))  # the first line is a comment
        if sign == "_":
            body = re.sub(r"\\label\{[\w:-]+\}", "", body)
        assert not re.search(rf"(?<!\\){re.escape(sign)}", body), sign
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    return rows


def test_latex_has_rules_equal_columns_and_escaped_signs() -> None:
    rows = [[NASTY, "61.20 ± 0.81", "-"], ["[odd] name", "-1.5 [-2.0, +1.0]", "3 †5"], ["*", "1", "over 10^15"]]
    text = latex_table(SummaryTable("a_b", "Accuracy, %", ["R&D", "50 %", "a_b #"], rows, "n = 3 seeds."))
    header, first, second, third = check_latex(text)
    assert header == r"R\&D & 50 \% & a\_b \# \\"
    assert r"61.20 $\pm$ 0.81 & --" in first
    assert r"C:\textbackslash{}new" in first
    assert second == r"{}[odd] name & $-$1.5 [$-$2.0, +1.0] & 3 $\dagger$5 \\"
    assert third.startswith("{}*")
    assert r"\caption{Accuracy, \%. n = 3 seeds.}" in text
    assert r"\label{tab:a_b}" in text
    assert r"\label{tab:once-a_b}" in latex_table(SummaryTable("a_b", "", ["a"], [["1"]]), "once"), (
        "two results in one paper"
    )
    words = [["x", "FL", "-"], ["y", "HSFL", "+1.0"]]
    assert r"{tabular}{llr}" in latex_table(SummaryTable("words", "Words", ["a", "less", "number"], words))


@pytest.mark.parametrize("sign", "&%_#${}~^\\|<>")
def test_no_sign_of_latex_is_left_alone(sign: str) -> None:
    found = latex_text(f"a{sign}b")
    assert found not in (f"a{sign}b", "ab")
    assert found.startswith("a")
    assert found.endswith("b")


def test_a_line_break_makes_no_line_of_the_table() -> None:
    assert latex_text("one\ntwo") == "one two"
    assert latex_text("2026-11-18, x-5, -5") == "2026-11-18, x-5, $-$5"


def test_the_csv_holds_the_numbers_behind_the_texts(tmp_path: Path) -> None:
    value = estimate([0.1, 0.2, 0.4])
    rows = [
        ["HSFL", ValueCell("500 kHz", 5e5), interval_text(value, 100, 1)],
        ["FL", "-", ValueCell("never", estimate([None]))],
    ]
    table = SummaryTable("means", "Means", ["", "band", "final"], rows)
    (path,) = write_summary_tables([table], tmp_path)
    assert path.name == "table-means.csv"
    with path.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert list(first) == ["row", "band", "final", "final low", "final high", "final n"]
    assert (first["row"], float(first["band"]), first["final n"]) == ("HSFL", 5e5, "3")
    assert value.mean is not None
    assert value.high is not None
    assert float(first["final"]) == 100 * value.mean  # to the last digit
    assert float(first["final high"]) == 100 * value.high
    assert (second["final"], second["final low"], second["final n"]) == ("", "", "0")
    assert csv_cells(SummaryTable("empty", "", ["a", "b"], [])) == (["a", "b"], [])


def test_latex_is_written_on_request_and_kept_up_to_date(tmp_path: Path) -> None:
    old, new = (SummaryTable("t", "T", ["a", "b"], [["x", number]]) for number in ("1", "2"))
    assert [path.name for path in write_summary_tables([old], tmp_path, latex=True)] == ["table-t.csv", "table-t.tex"]
    write_summary_tables([new], tmp_path)  # without the word: what is there does not stay behind
    assert r"x & 2 \\" in (tmp_path / "table-t.tex").read_text()


def test_the_caption_says_how_many_seeds() -> None:
    assert spread_note([1, 1]) == "n = 1 seed: no interval."
    assert "n = 3 seeds" in spread_note([3, 3])
    assert "n = 2 to 3 seeds" in spread_note([3, 2])


def test_a_cell_can_be_copied() -> None:
    cell = ValueCell("1 ± 2", Estimate(1.0, -1.0, 3.0, 2))
    again = copy.deepcopy(cell)
    assert (again, again.value) == (cell, cell.value)


def test_every_table_of_a_comparison(tmp_path: Path) -> None:
    for label, gain in (("hsfl", 0.0), ("fl,data.name=folder:/R&D_50%#1", 0.1)):
        for seed in range(2):
            write_run(tmp_path, label, seed, records([0.3, 0.5 + gain + 0.01 * seed]))
    comparison = read_comparison(tmp_path, target=0.5)
    paths = comparison.write(tmp_path, latex=True)[3:]
    names = [
        f"table-{name}.{kind}"
        for name in ("metrics", "time", "bytes", "pairs", "contenders")
        for kind in ("csv", "tex")
    ]
    assert [path.name for path in paths] == names
    for table in comparison.tables():
        assert len(check_latex((tmp_path / f"table-{table.name}.tex").read_text())) == 1 + len(table.rows)
        with (tmp_path / f"table-{table.name}.csv").open(newline="") as file:
            assert len(list(csv.DictReader(file))) == len(table.rows)
        assert "n = 2 seeds" in table.note or table.name == "contenders"
    with (tmp_path / "table-metrics.csv").open(newline="") as file:
        (hsfl,) = (row for row in csv.DictReader(file) if row["framework"] == "HSFL")
    assert float(hsfl["final"]) == pytest.approx(50.5)
    assert float(hsfl["final high"]) == pytest.approx(50.5 + 12.7062 * 0.5)
    assert read_comparison(tmp_path, target=0.5) == comparison  # what was written is no run
