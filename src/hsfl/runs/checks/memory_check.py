"""Whether training fits into the memory of this machine, from the cost table and before the first batch: else the system would
end the process without a word."""

from torch import Tensor

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.formats import size
from hsfl.framework_table import method
from hsfl.models.cost_table import BITS_PER_BYTE
from hsfl.planning.world import OPTIMIZER_STATES
from hsfl.runs.prepare import Bench
from hsfl.training.order_statistics import MEAN
from hsfl.training.speed import free_memory_bits, machine_memory_bits


def check_memory(bench: Bench, num_processes: int) -> str | None:
    """Refuse a run whose largest batch needs more memory than the machine has. Returns a warning where it needs more than is free now.

    Only what is there for certain is counted: the first weights, the weights of the round, and in each process that trains a model,
    the optimiser's tensors, and the gradients or what autograd keeps of a batch, whichever is more. A framework of the user's may
    train in smaller pieces, and where clients have a loss of their own the two sides are not in memory together: neither is
    judged. num_processes: that train on this machine.
    """
    config, row, memory_bits = bench.task.config, method(bench.task.config.framework), machine_memory_bits()
    cost, sizes, states = bench.world.cost, bench.task.feed.sizes, OPTIMIZER_STATES[config.train.optimizer]
    judged = row.built_in and row.timing.step != "local_loss" and config.device == "cpu" and num_processes > 0
    if memory_bits is None or cost.memory_bits is None or cost.param_bits is None or not judged:
        return None
    batch_size = int(min(config.train.batch_size, sizes.sum() if row.pools_data else sizes.max()))
    model_bits = float(cost.model_bits[-1])
    gradient_bits = sum(_num_bits(p) for p in bench.task.model.parameters() if p.requires_grad)
    training_bits = model_bits + (1 + states) * float(cost.param_bits[-1])  # as `measure_cost` counts it
    sample_bits = (float(cost.memory_bits[-1]) - training_bits) / (cost.batch_size or 1)
    fixed_bits = 2 * model_bits + num_processes * (model_bits + states * gradient_bits)
    fixed_bits += num_updates_kept(config, num_processes) * model_bits
    needed_bits = fixed_bits + num_processes * max(gradient_bits, batch_size * sample_bits)
    free_bits = min(memory_bits, free_memory_bits() or memory_bits)
    if needed_bits <= free_bits:
        return None
    room_bits = (free_bits - fixed_bits) / num_processes
    fitting = int(room_bits / sample_bits) if room_bits >= gradient_bits else 0
    ways = [f"set train.batch_size to {fitting}{' or less' if fitting > 1 else ''}"] if fitting else []
    ways += ["lower engine.workers"] if num_processes > 1 else []
    ways.append("take smaller samples or a smaller model")
    workers = f" in {num_processes} workers" if num_processes > 1 else ""
    needs = f"training on batches of {batch_size} samples{workers} needs {size(needed_bits / BITS_PER_BYTE)} of memory"
    has, way_out = size(memory_bits / BITS_PER_BYTE), ", or ".join(ways)
    if not fitting and batch_size > 1:
        way_out = f"batches of one sample would not fit either, {way_out}"
    if needed_bits > memory_bits:
        raise InputError(f"{needs} but this machine has {has}; {way_out}")
    free = size(free_bits / BITS_PER_BYTE)
    return (
        f"{needs}, of {has} that this machine has only {free} are free now, and the system may end the run; {way_out}"
    )


def num_updates_kept(config: RunConfig, num_processes: int) -> int:
    """How many clients' whole updates a round holds at once: none for a mean. Workers hold theirs until they hand them over, as a copy."""
    most = config.train.clients_per_round or config.fleet.num_clients
    return 0 if config.train.average == MEAN else most * (2 if num_processes > 1 else 1)


def updates_notes(bench: Bench) -> list[str]:
    """What to say of the memory in which a run keeps updates for a median or trimmed mean."""
    config = bench.task.config
    if config.train.average == MEAN:
        return []
    num_updates, model_bytes = num_updates_kept(config, 1), bench.task.initial.num_bytes
    return [
        f"train.average={config.train.average} keeps the updates of all clients of a round: {size(num_updates * model_bytes)} "
        f"({num_updates} times {size(model_bytes)}), and once more while workers hand them over"
    ]


def _num_bits(parameter: Tensor) -> int:
    return parameter.numel() * parameter.element_size() * BITS_PER_BYTE
