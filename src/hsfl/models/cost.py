"""What every cut costs: a model measured once into NumPy arrays indexed by cut. No torch above `measure`."""

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class CostTable:
    """Costs by cut, arrays of length C = num_units + 1; per sample unless said. A multiply-add is two FLOPs.

    `smashed_bits` is 0 at cut num_units; `gradient_bits` is 0 at cut 0 and at cut num_units.
    """

    client_forward_flops: Array  # [C]
    client_backward_flops: Array  # [C]
    server_forward_flops: Array  # [C]
    server_backward_flops: Array  # [C]
    smashed_bits: Array  # [C]
    gradient_bits: Array  # [C]
    model_bits: Array  # [C] the client side whole, parameters and buffers

    @property
    def num_units(self) -> int:
        return len(self.model_bits) - 1

    @property
    def client_flops(self) -> Array:
        return self.client_forward_flops + self.client_backward_flops

    @property
    def server_flops(self) -> Array:
        return self.server_forward_flops + self.server_backward_flops
