"""A plugin for a client that takes part as it should, and uploads a head whose BatchNorm variances are negative: finite numbers that no
honest training gives."""

from typing import Any

import hsfl
from hsfl.deploy.client_round import RoundWork

_upload_head = RoundWork.upload_head


async def _upload_hostile_head(self: RoundWork) -> None:
    head = self.job.head
    assert head is not None
    for name, tensor in head.named().items():
        if name.endswith("running_var"):
            tensor.fill_(-1.0)
    await _upload_head(self)


RoundWork.upload_head = _upload_hostile_head  # type: ignore[method-assign]


def _nothing(input_shape: tuple[int, ...], num_classes: int) -> Any:
    raise AssertionError("nobody trains this model")


hsfl.register_model("hostile", _nothing)  # a plugin must register something
