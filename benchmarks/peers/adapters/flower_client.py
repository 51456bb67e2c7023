"""The client of Flower's simulation, in a module of its own, so that an actor loads it once and keeps its model and data."""

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from paired_rounds import read_spec
from shared_work import WORKS, Work, batches_of, make_model, read_tensors, train_batches

SPEC_VARIABLE = "PEERS_SPEC"
app = ClientApp()


@cache
def loaded() -> tuple[Work, torch.nn.Module, torch.Tensor, torch.Tensor]:
    """The work, the model and the data, once for each actor."""
    spec = read_spec(os.environ[SPEC_VARIABLE])
    torch.set_num_threads(spec["settings"]["threads"])
    work = WORKS[spec["work"]]
    model = make_model(work, spec["shared"], spec["memory_format"])
    return work, model, *read_tensors(work, spec["shared"], spec["memory_format"])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One local epoch of the client that the node stands for."""
    work, model, x, y = loaded()
    client = int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train_batches(model, work.lr, batches_of(work, x, y, client))
    metrics = MetricRecord({"num-examples": work.num_samples, "client": client})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
