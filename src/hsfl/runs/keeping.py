"""What a run keeps: records, models and checkpoints of its rounds, and how it ended."""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from hsfl.files import write_json
from hsfl.models.state import UnitState
from hsfl.runs.checkpoint import save_checkpoint, save_tensors
from hsfl.runs.joined import estimated, exported
from hsfl.runs.parts import Parts, Position
from hsfl.runs.record import Summary, summarise
from hsfl.runs.round_records import RoundRecord
from hsfl.runs.tables import write_tables
from hsfl.training.aggregate import Diverged


def write_round(parts: Parts, here: Position, record: RoundRecord) -> None:
    """Write the record of the round that led here, the models that are to be kept, and a checkpoint where one is
    due."""
    folder, log = parts.folder, parts.config.log
    folder.append(record)
    folder.log_placed(record.round, parts.engine.placed())
    if here.standing.best_round == record.round:
        _save_model(parts, here, folder.best_model_path)
    if log.model_every is not None and record.round % log.model_every == 0:
        _save_model(parts, here, folder.path / "models" / f"round-{record.round}.safetensors")
    if record.round % log.checkpoint_every == 0:
        save_checkpoint(folder.checkpoint_path, here.state, here.standing, parts.config)


def _save_model(parts: Parts, here: Position, path: Path) -> None:
    save_tensors(path, _model(parts, here).named())


def _model(parts: Parts, here: Position) -> UnitState:
    """The model that a run gives here. Where the last round was not tested, BatchNorm's statistics are estimated for the file alone, by
    the clients that the round kept; no second of it is charged."""
    rounds_done = here.standing.rounds_done
    if here.estimated is not None:
        return here.estimated
    if parts.config.train.norm_statistics == "averaged" or not rounds_done:
        return exported(parts.framework, here.state)
    line, _ = parts.clock.round(rounds_done - 1, parts.clock.chosen(rounds_done - 1))
    try:
        return estimated(parts.framework, here.state, np.flatnonzero(line.kept).tolist(), rounds_done - 1)
    except Diverged as why:
        parts.observer.warns(f"the model keeps its averaged statistics: {why}")
        return exported(parts.framework, here.state)


def finish(parts: Parts, here: Position, status: str) -> Summary:
    """Write the last checkpoint and model, the tables and the summary. status: how the run ended."""
    save_checkpoint(parts.folder.checkpoint_path, here.state, here.standing, parts.config)
    _save_model(parts, here, parts.folder.last_model_path)
    summary = summarise(parts.folder, parts.config, status)
    write_tables(parts.folder.path, parts.folder.rounds())
    write_json(parts.folder.summary_path, asdict(summary))
    return summary
