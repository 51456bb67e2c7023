"""The cuts of a policy, chosen once before a run: searched over sampled rounds, or given by the policy's rule."""

from dataclasses import replace

import numpy as np

from hsfl.allocation.cuts.large_fleets import CellsOfRound
from hsfl.allocation.cuts.radio import radio_request
from hsfl.allocation.cuts.search import (
    CutChoice,
    CutRequest,
    CutSettings,
    OnProgress,
    best_single_cut,
    ignore_progress,
    search_cuts,
    single_cuts,
)
from hsfl.allocation.policies import policy
from hsfl.allocation.policy_table import POLICIES, PolicyRow
from hsfl.allocation.scenario import Scenario
from hsfl.config import AllocationConfig
from hsfl.framework_table import PROPOSED, method
from hsfl.network.channel import Measured
from hsfl.planning.large_fleet_cuts import large_fleet
from hsfl.planning.rounds.allocators import Job, own_policy
from hsfl.planning.rounds.measured_queue import queued_rounds
from hsfl.planning.rounds.measured_round import mean_speed_cuts, measured_rounds
from hsfl.planning.rounds.participation import CutTask, is_crowd
from hsfl.planning.rounds.radio_round import groups_by_cell, scenarios_of_cells
from hsfl.planning.world import sample_draws, scenario_of_round


def policy_cuts(task: CutTask) -> tuple[tuple[int, ...], str | None]:
    """The policy's cuts [K], and what to say of a search that its time limit stopped. A policy with a rule for cuts searches nothing."""
    settings = task.config.allocation
    chosen = policy(own_policy(settings.policy, PROPOSED), task.config.options)  # HSFL has a cut for each client
    if isinstance(task.world.links, Measured):
        chosen = chosen.refuse_without_radio()
    choice = chosen.choose(cut_request(task, chosen, threads=2))
    return tuple(choice.cuts.tolist()), limit_note(settings, choice)


def cut_request(
    task: CutTask,
    chosen: PolicyRow = POLICIES["proposed"],
    on_progress: OnProgress = ignore_progress,
    threads: int = 1,
) -> CutRequest:
    """What the settings ask of the methods that choose cuts, with the rounds that the policy's rule or search needs.

    on_progress: is told what the search does, its step, and the best mean round so far in seconds. threads: 1 where several searches
    run side by side.
    """
    world, settings = task.world, task.config.allocation
    how = CutSettings(
        method=settings.cuts,
        seed=world.seed,
        population=settings.population,
        patience=settings.patience,
        time_limit_s=settings.plan_time_limit_s,
        threads=threads,
    )
    if not chosen.needs_rounds:
        return CutRequest(task.rows, None, how)
    if isinstance(world.links, Measured):
        draws = sample_draws(world, settings.samples).sample(slice(settings.samples))
        start = None if chosen.chooses_cuts else mean_speed_cuts(task)
        shares = CutRequest(task.rows, measured_rounds(task, draws), how, start, on_progress)
        if world.servers.service is None:
            return shares
        start = None if chosen.chooses_cuts else search_cuts(shares).cuts
        return CutRequest(task.rows, queued_rounds(task, draws), how, start, on_progress)
    if is_crowd(world):
        return CutRequest(task.rows, replace(large_fleet(task), rounds=sampled_cells(task)), how)
    request = radio_request(sampled_scenarios(task), how, on_progress)
    if world.cost.num_blocks == 1 or chosen.chooses_cuts or not single_cuts(task.rows).size:
        return request
    return replace(request, start=best_single_cut(request).cuts)  # with several codecs there are more rows than starts


def sampled_cells(task: CutTask) -> list[CellsOfRound]:
    """The sampled rounds of a crowd in explicit numbers, cell by cell. tau_s is left aside: if clients could be dropped, dropping them would look
    fast. No rounds where every client has a server of its own (FSL), whose rounds are allocated otherwise."""
    config, world, sampled = task.config, task.world, task.participants
    if method(config.framework).timing.server == "own":
        return []
    draws = sample_draws(world, len(sampled.rounds))
    job = Job(config, world, task.rows.argmax(axis=1), task.batch_size, task.num_batches)
    downloads_count, rounds = sampled.num_receivers <= sampled.num_active, list[CellsOfRound]()
    for index, clients in enumerate(sampled.rounds[: len(draws.cpu_hz)]):
        groups = groups_by_cell(job, np.isin(np.arange(world.fleet.num_clients), clients))
        scenarios = scenarios_of_cells(config.allocation, job, draws.sample(index), groups)
        scenarios = [replace(scenario, tau_s=None) for scenario in scenarios]
        rounds.append(CellsOfRound(scenarios, groups, downloads_count))
    return rounds


def sampled_scenarios(task: CutTask) -> list[Scenario]:
    """The rounds to plan on: recorded rounds where there is a history, else draws apart from those of the run."""
    world, settings = task.world, task.config.allocation
    draws = sample_draws(world, settings.samples)
    count = min(len(draws.cpu_hz), settings.samples)
    rounds = (draws.sample(index) for index in range(count))
    min_cut = task.config.fleet.min_cut
    return [
        scenario_of_round(world, draw, task.batch_size, task.num_batches, None, settings.sharing, min_cut)
        for draw in rounds
    ]


def limit_note(settings: AllocationConfig, plan: CutChoice) -> str | None:
    """What to say of a search that its limit stopped; None where it came to its end."""
    if not plan.timed_out:
        return None
    return (
        f"the search for cuts was stopped by allocation.plan_time_limit_s = {settings.plan_time_limit_s:g}, with a proven gap of "
        f"{plan.gap:.1%}; a longer search, or a faster machine, may find better cuts"
    )
