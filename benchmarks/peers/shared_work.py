"""The work that every peer is given: models, data, first weights, and a plain FedAvg beside which the peers' weights are compared.

Needs torch and NumPy alone, so that every environment can import it. The models are lists of units in an `nn.Sequential`, so that
HSFL can cut them; the names in ResNet-18 differ from torchvision's, the layers and their order do not.

    python shared_work.py --check RUN_FOLDER --shared FOLDER   # compares what a peer trained with the plain FedAvg

Legend: n samples, C channels, H height, W width.
"""

import argparse
import hashlib
import json
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SEED = 30
NUM_CLASSES = 10
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
CHECKED_ROUNDS = 2  # after so many rounds a peer's weights are compared
COUNTS_VARIABLE = (
    "PEERS_COUNTS"  # names the folder where processes count their training batches; without it nothing is counted
)
Plan = list[
    list[tuple[int, list[np.ndarray]]]
]  # for each round: its clients, and for each client the samples of each batch


@dataclass(frozen=True)
class Work:
    """What is trained: every client makes one local epoch a round, by plain SGD."""

    name: str
    model: str
    num_clients: int
    per_round: int
    num_samples: int  # of each client
    batch_size: int
    shape: tuple[int, int, int]  # [C, H, W]
    lr: float = 0.01
    rounds: int = 4  # that are measured in one start, unless --rounds says otherwise

    @property
    def batches_of_client(self) -> int:
        return -(-self.num_samples // self.batch_size)

    def samples_of(self, client: int) -> slice:
        return slice(client * self.num_samples, (client + 1) * self.num_samples)

    def clients_of(self, round_index: int) -> list[int]:
        """The clients of a round (0, 1, ...) where a peer lets us choose them: one after another, and from the front again."""
        first = round_index * self.per_round
        return [(first + i) % self.num_clients for i in range(self.per_round)]


WORKS = {
    work.name: work
    for work in (
        Work("resnet18", "resnet18", 10, 10, 768, 256, (3, 32, 32), rounds=4),
        Work("cnn", "cnn", 500, 50, 20, 10, (1, 28, 28), rounds=10),
        Work("quick", "cnn", 6, 4, 20, 10, (1, 28, 28), rounds=2),
        Work("quick-resnet18", "resnet18", 2, 2, 16, 8, (3, 32, 32), rounds=2),
    )
}


# --- counting


class Counts:
    """Counts training batches and their samples in this process, in a file of its own that the measuring process reads.

    The file holds three numbers: batches, samples, and the time at which the second batch came to the model, when the first
    update was over. A process that the system kills leaves its counts behind.
    """

    def __init__(self) -> None:
        self.pid, self.numbers = 0, np.zeros(3)

    def add(self, num_samples: int) -> None:
        folder = os.environ.get(COUNTS_VARIABLE)
        if not folder:
            return
        if self.pid != os.getpid():  # also after a fork
            self.pid, path = os.getpid(), Path(folder) / f"{os.getpid()}.counts"
            path.write_bytes(bytes(24))
            with path.open("r+b") as file:
                self.numbers = np.frombuffer(mmap.mmap(file.fileno(), 24), np.float64)
        self.numbers[0] += 1
        self.numbers[1] += num_samples
        if self.numbers[0] == 2:
            self.numbers[2] = time.time()


COUNTS = Counts()


def read_counts(folder: Path) -> tuple[int, int, float | None]:
    """Batches and samples over all processes, and the time of the first update, if any was made."""
    rows = [np.frombuffer(path.read_bytes(), np.float64) for path in folder.glob("*.counts")]
    updates = [float(row[2]) for row in rows if row[2]]
    return int(sum(row[0] for row in rows)), int(sum(row[1] for row in rows)), min(updates, default=None)


class CountedConv2d(nn.Conv2d):
    """The first layer of a model: counts the batches that it is trained on."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled() and type(x) is Tensor and not x.is_meta:
            COUNTS.add(len(x))
        return super().forward(x)


# --- models


class BasicBlock(nn.Module):
    """The block of ResNet-18: two 3x3 convolutions, and a 1x1 projection beside them where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


def resnet18(in_channels: int) -> nn.Sequential:
    """ResNet-18 as torchvision has it, with the 7x7 stem: ten units, and 11,181,642 parameters for three channels."""
    conv = CountedConv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
    units: list[nn.Module] = [
        nn.Sequential(conv, nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1))
    ]
    channels = 64
    for layer, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            units.append(BasicBlock(channels, width, 2 if layer and not block else 1))
            channels = width
    units.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, NUM_CLASSES)))
    return nn.Sequential(*units)


def cnn(in_channels: int) -> nn.Sequential:
    """The CNN of the small clients: 5x5 convolutions of 32 and 64 channels without padding, max-pools, 512 and 10 units: 582,026
    parameters for 1x28x28."""
    conv = CountedConv2d(in_channels, 32, 5)
    return nn.Sequential(
        nn.Sequential(conv, nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 64, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(inplace=True)),
        nn.Linear(512, NUM_CLASSES),
    )


MODELS = {"resnet18": resnet18, "cnn": cnn}


def make_model(work: Work, shared: Path, memory_format: str = "contiguous") -> nn.Sequential:
    """The model with the first weights that all peers begin with. shared: the folder that `prepare` wrote."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = MODELS[work.model](work.shape[0])
    with np.load(shared / f"{work.name}-weights.npz") as weights:
        load_arrays(model, [weights[name] for name in weights.files])
    return model.to(memory_format=FORMATS[memory_format])


def arrays_of(model: nn.Module) -> list[np.ndarray]:
    """The weights and the buffers of a model in order, weights first, as copies in one memory order."""
    return [np.array(tensor.detach().numpy(), order="C") for tensor in (*model.parameters(), *model.buffers())]


def load_arrays(model: nn.Module, arrays: Sequence[np.ndarray]) -> None:
    """Takes over what `arrays_of` gave."""
    with torch.no_grad():
        for tensor, array in zip((*model.parameters(), *model.buffers()), arrays, strict=True):
            tensor.copy_(torch.from_numpy(np.asarray(array)))


# --- data


def prepare(shared: Path) -> None:
    """Write random images, labels and first weights of each work into a folder, where they are not there yet."""
    shared.mkdir(parents=True, exist_ok=True)
    for work in WORKS.values():
        rng = np.random.default_rng(SEED)
        paths = [shared / f"{work.name}-{what}" for what in ("x.npy", "y.npy", "weights.npz")]
        if paths[2].exists():
            continue
        count = work.num_clients * work.num_samples
        np.save(paths[0], rng.standard_normal((count, *work.shape), dtype=np.float32))
        np.save(paths[1], rng.integers(0, NUM_CLASSES, count))
        torch.manual_seed(SEED)
        unfinished = (
            shared / f"{work.name}-unfinished.npz"
        )  # the weights come last and at once: where they are, all is there
        np.savez(unfinished, *arrays_of(MODELS[work.model](work.shape[0])))
        unfinished.replace(paths[2])


def read_arrays(work: Work, shared: Path) -> tuple[np.ndarray, np.ndarray]:
    """All images [n, C, H, W] and labels [n]; processes share the memory of the files."""
    x, y = (np.load(shared / f"{work.name}-{what}.npy", mmap_mode="c") for what in "xy")
    return x, y


def read_tensors(work: Work, shared: Path, memory_format: str = "contiguous") -> tuple[Tensor, Tensor]:
    """All images and labels as tensors, the images in this memory format."""
    x, y = read_arrays(work, shared)
    return torch.from_numpy(x).contiguous(memory_format=FORMATS[memory_format]), torch.from_numpy(y)


def batches_of(work: Work, x: Tensor, y: Tensor, client: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a client in the order of its samples."""
    own = work.samples_of(client)
    for start in range(own.start, own.stop, work.batch_size):
        stop = min(start + work.batch_size, own.stop)
        yield x[start:stop], y[start:stop]


# --- training in plain PyTorch


def train_batches(model: nn.Module, lr: float, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
    """The innermost loop, as anybody would write it, with the fastest SGD that torch has."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, fused=True)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def natural_plan(work: Work, clients: list[list[int]]) -> Plan:
    """The batches of some rounds where every client takes its samples in order. clients: of each round."""
    sizes = range(work.batch_size, work.num_samples, work.batch_size)
    return [
        [(k, np.split(np.arange(work.samples_of(k).start, work.samples_of(k).stop), sizes)) for k in of_round]
        for of_round in clients
    ]


def plain_fedavg(work: Work, shared: Path, memory_format: str, plan: Plan) -> list[np.ndarray]:
    """The weights and buffers after the rounds of a plan: each client starts from the mean of the round before. Means are taken in
    double precision; all clients have as many samples."""
    model, (x, y) = make_model(work, shared, memory_format), read_tensors(work, shared, memory_format)
    for of_round in plan:
        before, total = arrays_of(model), [np.zeros(array.shape) for array in arrays_of(model)]
        for _, batches in of_round:
            load_arrays(model, before)
            train_batches(model, work.lr, ((x[indices], y[indices]) for indices in batches))
            for mean, array in zip(total, arrays_of(model)):
                mean += array / len(of_round)
        load_arrays(model, [mean.astype(array.dtype) for mean, array in zip(total, before)])
    return arrays_of(model)


def check(folder: Path, shared: Path) -> dict[str, float | int]:
    """How far the weights that a peer wrote into its folder are from those of the plain FedAvg on the same batches.

    The answer has the largest difference of a weight, the largest change of a weight in these rounds, and how many arrays were
    compared. A plan is trained once for all peers that follow it.
    """
    note = json.loads((folder / "trained.json").read_text())
    work, memory_format = WORKS[note["work"]], note["memory_format"]
    plan = (
        [[(k, [np.array(batch) for batch in batches]) for k, batches in of_round] for of_round in note["plan"]]
        if "plan" in note
        else natural_plan(work, note["clients"])
    )
    words = json.dumps([[(k, [batch.tolist() for batch in batches]) for k, batches in of_round] for of_round in plan])
    digest = hashlib.sha256(f"{work}{memory_format}{torch.__version__}{words}".encode()).hexdigest()[:16]
    kept = shared / f"fedavg-{digest}.npz"
    if not kept.exists():
        unfinished = shared / f"fedavg-{digest}-unfinished.npz"
        np.savez(unfinished, *plain_fedavg(work, shared, memory_format, plan))
        unfinished.replace(kept)
    arrays = [[loaded[name] for name in loaded.files] for loaded in map(np.load, (folder / "trained.npz", kept))]
    first = arrays_of(make_model(work, shared))
    rows = [(mine, plain, begun) for mine, plain, begun in zip(*arrays, first) if mine.dtype.kind == "f"]
    return {
        "largest_difference": float(max(np.abs(mine - plain).max() for mine, plain, _ in rows)),
        "largest_change": float(max(np.abs(plain - begun).max() for _, plain, begun in rows)),
        "num_arrays": len(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=Path, required=True, help="the folder of a start")
    parser.add_argument("--shared", type=Path, required=True, help="the folder that `prepare` wrote")
    words = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(check(words.check, words.shared)))


if __name__ == "__main__":
    main()
