# my_method.py
import torch
from pydantic import BaseModel, Field

import hsfl


class Options(BaseModel):
    momentum: float = Field(0.9, ge=0, lt=1)


class FedAvgM(hsfl.HSFL):
    def init(self):
        state = super().init()
        weights = {name for name, _ in self.task.model.named_parameters()}  # running statistics are no weights
        every = {f"{holder}/{name}": t for holder, units in state.units.items() for name, t in units.named().items()}
        still = {key: torch.zeros_like(t) for key, t in every.items() if key.partition("/")[2] in weights}
        return hsfl.State(state.units, still)

    def round(self, state, kept, round_index):
        after, result = super().round(state, kept, round_index)
        velocity = {}
        for key, before in state.tensors.items():
            holder, _, name = key.partition("/")
            # views: writing changes the units
            old, new = (units[holder].named()[name] for units in (state.units, after.units))
            velocity[key] = self.task.options.momentum * before + (new - old)
            new.copy_(old + velocity[key])
        return hsfl.State(after.units, velocity), result


hsfl.register_framework("fedavgm", FedAvgM, title="FedAvgM", options=Options)
