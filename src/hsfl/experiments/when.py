"""When are own cuts worth it? HSFL's planned cuts over the best single cut, by samples, speeds, noise and bits, without training."""

from pathlib import Path

from hsfl.experiments.common import Outcome, Say
from hsfl.experiments.when_maps import draw_when
from hsfl.experiments.when_study import read_answers, solve_tasks, when_study


def reproduce_when(out: Path, scale: str, num_seeds: int | None, say: Say, num_workers: int = 1) -> Outcome:
    """Solve what is missing of the grid, then draw the maps. A folder of scale quick goes on to scale full.

    num_seeds: at least so many fleets. num_workers: processes that solve side by side.
    """
    study = when_study(scale, num_seeds)
    solve_tasks(study, out, say, num_workers)
    return draw_when(out, study, {place: read_answers(study, out, place) for place in study.places})
