"""What `hsfl reproduce` asks of a study: Table 1, Fig. 3, the gains, the learning rates and the study of BatchNorm take one record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hsfl.experiments.common import Say
from hsfl.experiments.table1.columns import DATASETS, SEVEN
from hsfl.runs.progress import Observer
from hsfl.runs.studies.run_many import Show


@dataclass(frozen=True)
class StudyRequest:
    """Where a study's results go, how large it is, and whom it tells how far it is. A study ignores what it does not use."""

    out: Path  # the folder of the results; what is in it is not computed again
    scale: str
    num_seeds: int | None  # None: as many as the scale has
    say: Say
    columns: Sequence[str] = SEVEN
    datasets: Sequence[str] = DATASETS
    data_dir: Path | None = None  # of the data sets
    shipped: Path | None = None  # a folder of earlier results; None: everything is trained
    make_observer: Callable[[str], Observer] = lambda name: Observer()  # of a training, by its title
    jobs: int = 1  # trainings that are made side by side
    show: Show = field(default_factory=Show)  # is told how far those are
