"""Law: the order in which a tensor's numbers lie in memory, on which the bits of kernels depend, travels with the numbers: through the
frames of a deployment, and to the workers of a cluster."""

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hsfl.deploy.wire.client_messages import Batch
from hsfl.deploy.wire.messages import pack_message, unpack_message
from hsfl.engines.ray_engine import _array_of, _stored_tensor
from hsfl.frameworks.framework import Task
from hsfl.models.state import dense, usual_strides
from hsfl.models.units import SplitModel, in_order
from hsfl.training.link import Link
from tests.laws.bench import NUM_CLASSES, make_task, train


def wired(tensor: Tensor) -> Tensor:
    return unpack_message(pack_message(Batch(0), {"load": tensor}))[1]["load"]


def to_a_worker(tensor: Tensor) -> Tensor:
    return _stored_tensor(pickle.loads(pickle.dumps(_array_of(tensor), protocol=5)))


def like_mnist(task: Task) -> Task:
    """The task with images whose channels, of which there is one, lie last, as they do in MNIST's files."""
    images = task.feed.images
    task.feed.images = replace(images, x=images.x.as_strided(images.x.shape, (144, 1, 12, 1)))
    return task


class ChannelsLast(nn.Conv2d):
    """A unit of somebody's who likes channels last."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(memory_format=torch.channels_last)


class Half(ChannelsLast):
    """A unit whose output leaves gaps in memory: the other half of its channels."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, ::2]


def made_of(conv: type[nn.Conv2d], share: int) -> SplitModel:
    torch.manual_seed(0)
    last = nn.Sequential(nn.Flatten(), nn.Linear(16 // share * 12 * 12, NUM_CLASSES))
    return in_order([conv(1, 8, 3, padding=1), conv(8 // share, 16, 3, padding=1), last])


@pytest.mark.parametrize("model", [lambda: None, lambda: made_of(ChannelsLast, 1), lambda: made_of(Half, 2)])
def test_a_deployment_has_the_bits_of_the_simulation_in_any_order(
    model: Callable[[], SplitModel | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> Tensor:
        task = make_task([1, 2, 1], [8, 8, 8], model=model(), dtype=torch.float32)
        return train(like_mnist(task), "hsfl", [[0, 1, 2], [0, 1, 2]])[0].floats

    simulated = trained()
    monkeypatch.setattr(Link, "arrive", lambda self, route, load: wired(load) if isinstance(load, Tensor) else load)
    assert torch.equal(simulated, trained())


@settings(deadline=None)  # machines are noisy
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans(), st.data())
def test_strides_arrive(shape: list[int], gaps: bool, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    tensor = torch.randn([2 * size if gaps else size for size in shape])[..., :: 1 + gaps].permute(order)
    for way in (wired, to_a_worker):
        arrived = way(tensor)
        assert torch.equal(arrived, tensor)
        assert arrived.stride() == dense(tensor).stride()
        assert gaps or arrived.stride() == tensor.stride()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (1, 1), (4, 1, 2)])
def test_usual_strides_are_those_of_torch(shape: tuple[int, ...]) -> None:
    assert usual_strides(shape) == torch.empty(shape).stride()
    assert torch.equal(wired(torch.ones(shape)), torch.ones(shape))
    assert torch.equal(to_a_worker(torch.ones(shape)), torch.ones(shape))
