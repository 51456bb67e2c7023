"""LocFedMix-SL: Oh, Park, Vepakomma, Baek, Raskar, Bennis, Kim, "LocFedMix-SL: Localize, Federate, and Mix for
Improved Scalability, Convergence, and Latency in Split Learning" (2022).

One server step per step over all clients. The server also trains on mixtures of smashed data of different clients,
detached from the heads. Each head adds a local loss: the reconstruction of its input from the smashed data through a
small decoder of its own. Heads and decoders are averaged at the end of the round.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hsfl.errors import InputError
from hsfl.frameworks.framework import RoundResult, State, Task
from hsfl.frameworks.in_step import InStep, Keys, Tensors, Work
from hsfl.models.cost_table import measure_module
from hsfl.models.state import Layout, read_state
from hsfl.models.units import SplitModel
from hsfl.planning.rounds.round_clock import Extras
from hsfl.rng import stream, torch_seed
from hsfl.training.aggregate import PartialSum
from hsfl.training.link import Link
from hsfl.training.step import Part, StepKey

DECODER_CHANNELS = 16


class LocFedMix(InStep):
    """LocFedMix-SL: joint steps with mixed smashed data, and a decoder for each head."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        if not task.feed.images.x.is_floating_point() and task.feed.images.x.dtype != torch.uint8:
            raise InputError(
                f"{task.config.framework} rebuilds the numbers of its samples, and {task.config.data.name} holds tokens; "
                "choose another framework"
            )
        cut = self.cuts[0]
        decoder = _make_decoder(task.model, cut, task.feed.images.shape, task.config.seed)
        decoder.to(task.initial.floats)
        self.decoder = decoder
        self.decoder_initial = read_state(decoder)
        layout = Layout.of(decoder)
        self.decoders = [Part(decoder, layout, 0, 1, task.config.train) for _ in self.cuts]

    def extras(self) -> Extras:
        """The decoder's cost: FLOPs on the client, and bits that travel with the head."""
        shape = _smashed_shape(self.task.model, self.cuts[0], self.task.feed.images.shape)
        return Extras(*measure_module(self.decoder.units[0], shape))

    def init(self) -> State:
        return State({"model": self.task.initial.clone(), "decoder": self.decoder_initial.clone()})

    def round(self, state: State, kept: Sequence[int], round_index: int) -> tuple[State, RoundResult]:
        before, link = (
            state.units["decoder"],
            Link(),
        )  # decoders are not coded, and their bytes are counted with the heads
        for k in kept:
            self.decoders[k].begin(link.arrive("client_edge_down", before), self.task.lr(round_index))
        after, result = super().round(state, kept, round_index)
        total = PartialSum.zero(before, sum(map(self.head_weight, kept)))
        for k in kept:
            total.add(link.arrive("client_edge_up", self.decoders[k].state), self.head_weight(k))
        return State(after.units | {"decoder": total.mean(before)}, memory=after.memory), result

    def head_bytes(self, client: int, trained: bool) -> int:
        """The decoder travels with the head."""
        return super().head_bytes(client, trained) + self.decoder_initial.num_bytes

    def extra_loss(self, work: Work, smashed: Tensors, labels: Tensors, keys: Keys, step: int) -> Tensor | float:
        """The loss on mixtures of each client's smashed data with another client's, weighted by samples."""
        if len(smashed) < 2:
            return 0.0
        rng = stream(self.task.config.seed, "mix", work.round_index, step)
        clients, num_samples = list(smashed), sum(len(y) for y in labels.values())
        alpha = self.task.config.options.locfedmix_sl.alpha
        mixed, targets, weights = [], [], []
        for k in clients:
            partner = int(rng.choice([j for j in clients if j != k]))
            rows = torch.from_numpy(rng.integers(len(labels[partner]), size=len(labels[k]))).to(labels[k].device)
            lam = float(rng.beta(alpha, alpha))
            mixed.append(lam * smashed[k].detach() + (1 - lam) * smashed[partner].detach()[rows])
            targets.append((labels[k], labels[partner][rows]))
            weights.append(lam)
        first = keys[clients[0]]
        other_masks = replace(first, client=first.client + self.task.num_clients)  # than those of the clean pass
        logits = self.tail.forward(torch.cat(mixed), other_masks)
        loss = logits.new_zeros(())
        for client_logits, (client_labels, partner_labels), lam in zip(
            logits.split([len(m) for m in mixed]), targets, weights
        ):
            loss = loss + lam * self.tail.goal.total(client_logits, client_labels)
            loss = loss + (1 - lam) * self.tail.goal.total(client_logits, partner_labels)
        return loss / num_samples

    def update_heads(
        self, work: Work, clients: Sequence[int], inputs: Tensors, smashed: Tensors, gradients: Tensors
    ) -> None:
        weight = self.task.config.options.locfedmix_sl.reconstruction
        for k, gradient in gradients.items():
            key = StepKey(self.task.config.seed, k, 0, 0)  # decoders draw nothing
            local = weight * F.mse_loss(self.decoders[k].forward(smashed[k], key), inputs[k])
            if smashed[k].requires_grad:
                torch.autograd.backward([smashed[k], local], [gradient, torch.ones_like(local)])
                self.heads[k].update()
            else:
                local.backward()
            self.decoders[k].update()


def _smashed_shape(model: SplitModel, cut: int, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one sample's smashed data."""
    first = next(model.parameters(), torch.zeros(0))
    with torch.no_grad():
        smashed = model.head(cut).eval()(
            torch.zeros(1, *input_shape, dtype=model.input_dtype or first.dtype, device=first.device)
        )
    return tuple(smashed.shape[1:])


def _make_decoder(model: SplitModel, cut: int, input_shape: tuple[int, ...], seed: int) -> SplitModel:
    """From smashed data back to the input: two convolutions around an up-sampling, or one dense layer."""
    smashed, channels = _smashed_shape(model, cut, input_shape), input_shape[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "decoder"))
        if len(smashed) == len(input_shape) == 3:
            decoder = nn.Sequential(
                nn.Conv2d(smashed[0], DECODER_CHANNELS, 3, padding=1),
                nn.ReLU(),
                nn.Upsample(input_shape[1:]),
                nn.Conv2d(DECODER_CHANNELS, channels, 3, padding=1),
            )
        else:
            dense = nn.Linear(prod(smashed), prod(input_shape))
            decoder = nn.Sequential(nn.Flatten(), dense, nn.Unflatten(1, input_shape))
    return SplitModel({"decoder": decoder})
