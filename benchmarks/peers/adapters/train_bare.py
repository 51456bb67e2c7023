"""The bare loop in the place of a peer: what is measured of it says how much two equal programs differ here."""

import torch
from paired_rounds import PairedRounds, read_spec
from shared_work import WORKS, batches_of, make_model, read_tensors, train_batches


def main() -> None:
    spec = read_spec()
    torch.set_num_threads(1)
    work, shared, memory_format = WORKS[spec["work"]], spec["shared"], spec["memory_format"]
    model, (x, y) = make_model(work, shared, memory_format), read_tensors(work, shared, memory_format)
    rounds = PairedRounds(spec)
    rounds.begin()
    for _ in range(rounds.total_rounds):
        for client in work.clients_of(rounds.rounds_done):
            train_batches(model, work.lr, batches_of(work, x, y, client))
        rounds.round_done(None)


if __name__ == "__main__":
    main()
