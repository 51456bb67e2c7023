"""docs/models.md is run from top to bottom as it stands."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.files import unload
from tests.small_runs import hsfl
from tests.test_docs_data import ROOT, parts_of

TEXT = (ROOT / "docs/models.md").read_text()


@pytest.mark.slow
def test_the_page_about_models_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A snippet that begins with the name of a file is that file; the others are one program; commands must succeed."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    assert [kind for kind, _ in parts_of(TEXT)].count("hsfl") == TEXT.count("\n    hsfl ")
    for kind, part in parts_of(TEXT):
        if part.startswith("# my"):
            (tmp_path / part.split()[1]).write_text(part)
        elif kind == "python":
            exec(part, names)
        elif "=hf:" not in part or find_spec("transformers") is not None:  # an extra that tests do without
            answer = hsfl(*part.split())
            assert (answer.code, answer.err) == (0, ""), answer
    shown = capsys.readouterr().out
    assert "('stem', 'left', 'head')" in shown
    assert "torch.Size([2, 12, 5]) torch.Size([2, 24])" in shown
    assert names["result"].status == "finished"
    unload()
    assert (tmp_path / "runs/named/export/model.torchscript.pt").exists()
