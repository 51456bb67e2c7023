"""The ten frameworks, by name."""

from collections.abc import Callable

from hsfl.frameworks.base import Framework, Task
from hsfl.frameworks.in_step import CPSL, PSL, SplitFedV2
from hsfl.frameworks.local_loss import LocFedMix
from hsfl.frameworks.parallel import FSL, HSFL, SplitFedV1
from hsfl.frameworks.sequential import SL
from hsfl.frameworks.unsplit import CL, FL

FRAMEWORKS: dict[str, Callable[[Task], Framework]] = {
    "cl": CL,
    "fl": FL,
    "sl": SL,
    "splitfed_v1": SplitFedV1,
    "splitfed_v2": SplitFedV2,
    "psl": PSL,
    "fsl": FSL,
    "locfedmix_sl": LocFedMix,
    "cpsl": CPSL,
    "hsfl": HSFL,
}
COPY_PER_CLIENT = ("hsfl", "splitfed_v1", "fsl", "fl")  # these take FedProx's proximal term
