"""A training step through all parts of a split module against a step of the module itself; and how long finding its cuts takes.

    python benchmarks/split_step.py            # ResNet-18, ViT and GPT-2, batch 32, 60 pairs of steps
    python benchmarks/split_step.py --quick    # a smoke run: small models, few steps
    python benchmarks/split_step.py --cuts     # seconds and memory for the cuts of a GPT-2 of 162 million parameters, nothing else

Single steps (forward, loss, backward) of the two are taken in turn; the ratio is of their medians, its interval the 95 % one of a
bootstrap over pairs. All parts run one after another, each output detached and its gradient handed back, as at every cut at once:
more than any client and server do together.
"""

import argparse
import copy
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import hsfl
from hsfl.models.units import SplitModel
from hsfl.models.zoo import build

BATCH, PAIRS, WARM_UP = 32, 60, 3


class Block(nn.Module):
    """A layer of a transformer, pre-norm, with torch's attention kernel."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class ViT(nn.Module):
    def __init__(self, width: int = 192, depth: int = 12, heads: int = 3, side: int = 32, patch: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, is_causal=False) for _ in range(depth))
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.fc(self.norm(x[:, 0]))


class GPT2(nn.Module):
    def __init__(
        self, vocabulary: int = 2048, context: int = 64, width: int = 256, depth: int = 6, heads: int = 4
    ) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(vocabulary, width), nn.Embedding(context, width), nn.Dropout(0.1)
        self.h = nn.ModuleList(Block(width, heads, is_causal=True) for _ in range(depth))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def models(is_quick: bool) -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    """By name: the module, a batch, and its targets."""
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    if is_quick:
        tokens = torch.randint(0, 64, (BATCH, 8))
        return {"gpt2": (GPT2(64, 8, 16, 2, 2), tokens, tokens.roll(-1, 1))}
    tokens = torch.randint(0, 2048, (BATCH, 64))
    return {
        "resnet18": (build("resnet18", (3, 32, 32), 10, stem="cifar"), images, labels),
        "vit": (ViT(), images, labels),
        "gpt2": (GPT2(), tokens, tokens.roll(-1, 1)),
    }


def loss(answer: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(answer.flatten(0, -2), target.flatten())


def whole_step(module: nn.Module, x: Tensor, y: Tensor) -> None:
    loss(module(x), y).backward()
    module.zero_grad()


def split_step(model: SplitModel, x: Tensor, y: Tensor) -> None:
    """Cut at every unit at once."""
    sent, made = x, []
    for unit in model.units:
        made.append((sent, out := unit(sent)))
        sent = out.detach().requires_grad_()
    gradient = None
    for i, (taken, out) in enumerate(reversed(made)):
        if i == 0:
            loss(out, y).backward()
        else:
            out.backward(gradient)
        gradient = taken.grad
    model.zero_grad()


def seconds(step: Callable[..., None], *args: object) -> float:
    started = time.perf_counter()
    step(*args)
    return time.perf_counter() - started


def ratio(pairs: np.ndarray) -> tuple[float, float, float]:
    """The ratio of medians of [n, 2] seconds, and its 95 % interval."""
    draws = np.random.default_rng(0).integers(0, len(pairs), (2000, len(pairs)))
    medians = np.median(pairs[draws], axis=1)
    low, high = np.quantile(medians[:, 1] / medians[:, 0], [0.025, 0.975])
    middle = np.median(pairs, axis=0)
    return float(middle[1] / middle[0]), float(low), float(high)


def compare(name: str, module: nn.Module, x: Tensor, y: Tensor, num_pairs: int) -> None:
    model = copy.deepcopy(hsfl.split(module.train(), x[:2]))
    for _ in range(WARM_UP):
        whole_step(module, x, y)
        split_step(model, x, y)
    pairs = []
    for i in range(num_pairs):
        one, other = (lambda: seconds(whole_step, module, x, y)), (lambda: seconds(split_step, model, x, y))
        first, second = (one, other) if i % 2 == 0 else (other, one)
        taken = [first(), second()]
        pairs.append(taken if i % 2 == 0 else taken[::-1])
    middle, low, high = ratio(np.array(pairs))
    whole_ms = 1000 * statistics.median(pair[0] for pair in pairs)
    print(
        f"{name}: {model.num_units} units, {middle:.3f} of the whole module's step (95 %: {low:.3f} to {high:.3f}, "
        f"n = {num_pairs} pairs; the whole {whole_ms:.1f} ms)"
    )


def find_cuts(is_quick: bool) -> None:
    """The cuts of a model of 162 million parameters, or of a small one."""
    module = GPT2(64, 8, 16, 2, 2) if is_quick else GPT2(50257, 128, 768, 12, 12)
    size = sum(parameter.numel() for parameter in module.parameters())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu_started = time.perf_counter(), time.process_time()
    model = hsfl.split(module, torch.zeros(2, 8 if is_quick else 128, dtype=torch.int64))
    taken, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(
        f"{model.num_units - 1} cuts of {size / 1e6:.0f} million parameters: {taken:.1f} s ({cpu:.1f} s of one core), "
        f"{more / 1024:.0f} MiB more"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cuts", action="store_true")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    find_cuts(chosen.quick)
    if not chosen.cuts:
        for name, (module, x, y) in models(chosen.quick).items():
            compare(name, module, x, y, 3 if chosen.quick else chosen.pairs)


if __name__ == "__main__":
    main()
