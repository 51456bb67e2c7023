"""Checkpoints of a server's units, one file a round; the last two rounds stay, so that both servers can begin the same round."""

import re
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from hsfl.deploy.model_kit import ModelKit
from hsfl.errors import InputError
from hsfl.files import clear_scratch, patiently
from hsfl.models.state import UnitState
from hsfl.runs.run_folder.checkpoint import load_tensors, save_tensors

FILE_NAME = re.compile(r"round-(\d{1,9})\.safetensors")
KEPT_ROUNDS = 2  # rounds


class UnitStore:
    """The states of the last rounds, in a folder. `round` is the number of rounds that a state has seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        clear_scratch(folder)

    def rounds(self) -> list[int]:
        """The rounds that are here, oldest first."""
        matches = (FILE_NAME.fullmatch(path.name) for path in self.folder.glob("round-*.safetensors"))
        return sorted(int(match[1]) for match in matches if match)

    def save(
        self, round: int, state: UnitState, notes: dict[str, str], once_written: Callable[[], None] | None = None
    ) -> None:
        """Keep a state. Either it is on the disk, or the files are as before and an error without paths says why.
        notes: text to keep with the state. once_written: called when its content is on the disk, before it takes its place."""
        about = notes | {"start": str(state.start), "stop": str(state.stop)}
        try:
            save_tensors(self._path(round), {"floats": state.floats, "ints": state.ints}, about, once_written)
        except InputError as error:
            reason = getattr(error.__cause__, "strerror", None) or error.__cause__
            raise InputError(
                f"the checkpoint of round {round} cannot be written ({reason}); the round before stays: make room and start again"
            ) from error
        for old in patiently(self.rounds):
            if not round - KEPT_ROUNDS < old <= round:  # a later round is made again from here
                self._path(old).unlink(missing_ok=True)

    def load(self, round: int, kit: ModelKit) -> tuple[UnitState, dict[str, str]]:
        """The state of a round, and its notes."""
        try:
            tensors, notes = load_tensors(self._path(round))
            start, stop = int(notes["start"]), int(notes["stop"])
            if not 0 <= start <= stop <= kit.num_units:
                raise ValueError(f"units {start} to {stop}")
            state = kit.empty(start, stop)
            if tensors["floats"].shape != state.floats.shape or tensors["ints"].shape != state.ints.shape:
                raise ValueError("another model's")
            state.floats.copy_(tensors["floats"])
            state.ints.copy_(tensors["ints"])
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise InputError(
                f"the checkpoint of round {round} cannot be used ({error}); begin with an empty folder"
            ) from None
        return state, notes

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round}.safetensors"
