"""The file of orders: what is appended is read, whatever else happened to the file."""

import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.deploy.admin.operator_events import EVENTS_FILE, OperatorEvent, append_event, read_events
from hsfl.errors import InputError
from tests.naming import names, raises

NAME = st.sampled_from(("ada", "bo", "ward-3"))
EVENTS = st.one_of(
    st.builds(OperatorEvent, st.just("now"), st.sampled_from(("pause", "resume", "drain", "drained"))),
    st.builds(OperatorEvent, st.just("now"), st.just("bench"), NAME, st.none() | st.integers(1, 9)),
    st.builds(OperatorEvent, st.just("now"), st.sampled_from(("kick", "resume")), NAME),
    st.builds(
        OperatorEvent,
        st.just("now"),
        st.just("set"),
        values=st.dictionaries(
            st.sampled_from(("tau_s", "min_clients", "cut.ada", "cut.bo")),
            st.integers(1, 3).map(float),
            min_size=1,
        ),
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@settings(max_examples=25)  # each is written to the disk
@given(st.lists(st.tuples(EVENTS, st.booleans()), max_size=8))
def test_what_is_appended_is_read_though_lines_are_torn(folder: Path, events: list[tuple[OperatorEvent, bool]]) -> None:
    """A power cut may leave half a line. It is no order, and it takes no other order with it."""
    path, wanted = folder / EVENTS_FILE, []
    path.unlink(missing_ok=True)
    for event, torn_before in events:
        if torn_before:
            whole = read_events(folder)
            with path.open("ab") as file:
                file.write(b'{"time": "now", "deed": "pau')
            assert [str(line) for line in read_events(folder)] == [str(line) for line in whole]  # it has no end yet
        append_event(folder, event)
        wanted.append(event)
        assert [line for line in read_events(folder) if isinstance(line, OperatorEvent)] == wanted


def test_only_its_owner_may_write_it(folder: Path) -> None:
    (folder / EVENTS_FILE).unlink(missing_ok=True)
    append_event(folder, OperatorEvent("now", "pause"))
    assert stat.S_IMODE((folder / EVENTS_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"time": "now", "deed": "explode"}', "explode"),
        ('{"time": "now", "deed": "bench", "rounds": -1}', "-1"),
        ('{"time": "now", "deed": "set", "values": {"tau_s": NaN}}', "line 1"),
        ('{"time": "now", "deed": "pause", "more": 1}', "more"),
        ('{"a": "' + "x" * 5000 + '"}', "bytes"),
        ("pause", "line 1"),
    ],
)
def test_a_line_that_is_no_order_is_an_error_in_its_place(tmp_path: Path, line: str, part: str) -> None:
    (tmp_path / EVENTS_FILE).write_text(line + "\n" + '{"time": "now", "deed": "pause"}\n')
    wrong, right = read_events(tmp_path)
    names(str(wrong), "line 1", EVENTS_FILE, part, "hsfl admin")
    assert isinstance(wrong, InputError)
    assert right == OperatorEvent("now", "pause")


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / EVENTS_FILE).mkdir()
    with raises(InputError, EVENTS_FILE, "cannot be written", "make room there"):
        append_event(tmp_path, OperatorEvent("now", "pause"))
