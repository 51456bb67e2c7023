"""What the main server's handlers and its loop over rounds share: the clients, the open round, and how a client is dropped."""

from dataclasses import dataclass, field

from hsfl.deploy.client_messages import RoundOver
from hsfl.deploy.compute import Compute
from hsfl.deploy.edge_link import EdgeLink
from hsfl.deploy.evaluation import Evaluation
from hsfl.deploy.kit import Kit
from hsfl.deploy.logs import Log
from hsfl.deploy.main_round import MainRound
from hsfl.deploy.messages import pack
from hsfl.deploy.metrics import Metrics
from hsfl.deploy.plan import Planner
from hsfl.deploy.roster import Roster
from hsfl.deploy.settings import MainSettings


@dataclass(eq=False)
class Desk:
    """What the main server's handlers and its loop over rounds share."""

    settings: MainSettings
    kit: Kit
    planner: Planner
    roster: Roster
    edge: EdgeLink
    compute: Compute
    log: Log
    metrics: Metrics
    open_round: MainRound | None = None
    evaluation: Evaluation | None = None  # by the clients' samples, while one is under way
    waits_for: int | None = None  # number of clients that the next round needs, while there are fewer
    drops: dict[str, int] = field(default_factory=dict)  # number of drops since the start of this process, by client

    def drop(self, seat: int, reason: str, words: str) -> None:
        """Leave a client out of the open round. A client on which the servers have agreed stays in, as its update is in
        their sums, and is dropped only if the sums are not swapped. reason: of `metrics.REASONS`."""
        open_round = self.open_round
        if open_round is None or seat not in open_round.tails:
            return
        if seat in open_round.agreed:
            open_round.later.append((seat, reason, words))
            return
        if not open_round.drop(seat, reason, words):
            return
        name = open_round.tails[seat].name
        self.log.event("client dropped", "warning", client=name, round=open_round.round + 1, reason=reason, why=words)
        self.metrics.dropped(reason)
        self.drops[name] = self.drops.get(name, 0) + 1
        self.roster.send(seat, pack(RoundOver(open_round.round, open_round.attempt, False, words[:1000])))
