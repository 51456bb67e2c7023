"""How `hsfl plan` shows the plan of a fleet: a table of clients or of quantiles, a table of policies, and what is proven."""

from typing import Any

from hsfl.commands.console import out_console, show_table
from hsfl.formats import cut_words, giga, percent, seconds, significant, took


def show_plan(answer: Any) -> None:
    """Print what a plan assumes, a table of clients or of quantiles, a table of policies, and what is proven."""
    # here, because importlib.metadata, which plugins need, is slow
    from hsfl.allocation.policy_table import policy_row
    from hsfl.planning.plans.single_cut import single_cut_sentence
    from hsfl.report.page.page_words import plan_sentence

    out_console.print("assumed: " + " ".join(answer.assumed), soft_wrap=True)
    out_console.print()
    if answer.crowd is None:
        _show_clients(answer)
        rounds, cuts = f"{answer.num_samples} samples", "no cuts and no allocation"
    else:
        _show_crowd(answer)
        rounds, cuts = f"{answer.num_samples} sampled rounds", "no allocation with these cuts"
    if (sentence := plan_sentence(answer)) is not None:
        out_console.print(sentence, soft_wrap=True)
    out_console.print()
    means = answer.baselines_s
    longer = [percent(mean_s / means["proposed"] - 1, 1, sign=True) for mean_s in means.values()]
    shown = [
        (name, significant(mean_s, 5), more, policy_row(name).words)
        for (name, mean_s), more in zip(means.items(), longer)
    ]
    show_table(out_console, ("policy", "mean round s", "longer than proposed", "by rule"), shown)
    out_console.print()
    out_console.print(
        f"{answer.policy}: a round takes {seconds(answer.round_s, 5)} on average over {rounds}; {cuts} "
        f"can beat {seconds(answer.lower_bound_s, 5)} (gap {percent(answer.gap)}); cuts chosen in {took(answer.search_s)}",
        soft_wrap=True,
    )
    if (sentence := single_cut_sentence(answer.single)) is not None:
        out_console.print(sentence, soft_wrap=True)
    for note in answer.notes:
        out_console.print(f"note: {note}", soft_wrap=True)


def _show_crowd(answer: Any) -> None:
    """Print many clients in a few rows: how many have each cut, and quantiles over the clients of one round."""
    crowd = answer.crowd
    cuts = ", ".join(f"{number:,} at cut {cut}" for cut, number in crowd.cuts.items())
    chosen = round(sum(crowd.num_chosen) / len(crowd.num_chosen))
    cells = f" in {crowd.num_cells:,} cells" if crowd.num_cells > 1 else ""
    out_console.print(
        f"{crowd.num_clients:,} clients{cells}, of whom {chosen:,} take part in a round: {cuts}",
        soft_wrap=True,
    )
    if crowd.cell_hz:
        least, middle, most = (giga(crowd.cell_hz[crowd.quantiles.index(per_cent)]) for per_cent in (0, 50, 100))
        out_console.print(f"the main server gives a cell {least} to {most} G/s, half of the cells at most {middle}")
    out_console.print(
        "seconds of the last sampled round (under 5%: five per cent of its clients take at most so long); end: when "
        "training and upload are over",
        soft_wrap=True,
    )
    rows = [(name.replace("_", " "), values) for name, values in {**crowd.seconds, "end": crowd.finish_s}.items()]
    shown = [(name, *(significant(value, 3) for value in values)) for name, values in rows]
    show_table(out_console, ("phase", *map(_quantile_head, crowd.quantiles)), shown)


def _quantile_head(per_cent: int) -> str:
    """The head of a column: least, 5%, ..., most."""
    return {0: "least", 100: "most"}.get(per_cent, f"{per_cent}%")


def _show_clients(answer: Any) -> None:
    """Print a row for each client: its cut, what it gets, and what holds it up."""
    radio = answer.clients[0].main_up_power_w is not None
    band = "share" if answer.clients[0].share is not None else "subchannel no."
    which = f" in the first of {answer.num_samples} samples (the last line is the mean over all)"
    queued = "waiting" in answer.clients[0].seconds
    server = (
        "waits: for the main server, which serves one batch at a time" if queued else "the main server's cycles in G/s"
    )
    out_console.print(
        f"each client{which if answer.num_samples > 1 else ''}; {server}; end s: when training and upload are over",
    )
    rows = []
    for client in answer.clients:
        held = f"{client.bottleneck.replace('_', ' ')} ({seconds(client.seconds[client.bottleneck], 4)})"
        weight = "-" if client.weight is None else percent(client.weight, 1)
        server = significant(client.seconds["waiting"]) if queued else giga(client.server_hz)
        first = (client.name.removeprefix("client "), cut_words(client.cut, client.codec), server)
        rows.append((*first, *(_radio_cells(client) if radio else ()), significant(client.ends_s), weight, held))
    show_table(
        out_console,
        (
            "client",
            "cut",
            "waits" if queued else "G/s",
            *((band, "up W", "down W") if radio else ()),
            "end s",
            "weight",
            "longest phase",
        ),
        rows,
    )
    if any(client.weight is not None for client in answer.clients):
        out_console.print(
            "weight: how much of the round hangs on the client; a second less for the client saves this "
            "part of a second"
        )


def _radio_cells(client: Any) -> tuple[str, str, str]:
    """Subchannels, or a share of the band, and the powers towards and from the main server."""
    if client.share is not None:
        band = percent(sum(client.share) / len(client.share), 1)
    else:
        band = " ".join(map(str, client.subchannels))
    return band, significant(client.main_up_power_w), significant(client.main_down_power_w)
