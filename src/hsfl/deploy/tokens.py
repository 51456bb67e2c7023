"""Round tokens: a token ties a stream to its client and its round, and is used once."""

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from hsfl.deploy.identity import Refused

NUM_BYTES = 16


@dataclass(frozen=True)
class _Given:
    round: int
    token: bytes
    used: bool = False


class Tokens:
    """The tokens that a server gave out: the last one of each client, of at most `most_clients` clients."""

    def __init__(self, most_clients: int = 10_000) -> None:
        self._most_clients = most_clients
        self._given: OrderedDict[str, _Given] = OrderedDict()

    def give(self, client: str, round: int) -> bytes:
        """A new token for this client's next stream of this round; an earlier one of the client no longer counts."""
        token = secrets.token_bytes(NUM_BYTES)
        self._given[client] = _Given(round, token)
        self._given.move_to_end(client)
        while len(self._given) > self._most_clients:
            self._given.popitem(last=False)  # the oldest token goes; its client asks for another
        return token

    def use(self, client: str, round: int, token: bytes) -> None:
        """Take a token, once. client: from the certificate, never from the message."""
        given = self._given.get(client)
        if given is None or not hmac.compare_digest(given.token, token):  # in a time that tells nothing of the token
            raise Refused(
                "token", f"{client}'s token for round {round} is not the one it was given; join the round again"
            )
        if given.round != round:
            raise Refused("token", f"{client}'s token is for round {given.round}, not {round}; join the round again")
        if given.used:
            raise Refused("token", f"{client}'s token for round {round} was used before; join the round again")
        self._given[client] = _Given(round, given.token, used=True)

    def forget(self, client: str) -> None:
        """Drop the client's token, as when it leaves or is dropped."""
        self._given.pop(client, None)

    def __len__(self) -> int:
        return len(self._given)
