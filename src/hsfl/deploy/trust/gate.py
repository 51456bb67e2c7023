"""The gate in front of a server's handlers: here a certificate is refused. Every call is checked before a handler sees it
(`Gate._check_caller`), and open calls end when their certificate is revoked or expires (`Gate.end_refused_calls`).

    gate = Gate({"/hsfl.Edge/Fetch": {"client"}, "/hsfl.Edge/Swap": {"main"}}, Denylist(folder / "denylist.txt"))
    server = grpc.aio.server(interceptors=[gate])
    watching = asyncio.create_task(gate.watch())

A handler asks `identity.caller()` who calls. A method that the table does not name may be called by nobody. Nothing is read of a call
before it is admitted, and one name has few calls open at a time, so that what a peer can make the server hold has a limit. What goes
wrong in a handler stays on the server: gRPC would send the exception's words, with the server's paths, to the peer.
"""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from hsfl.deploy.trust.denylist import Denylist
from hsfl.deploy.trust.identity import (
    Identity,
    Refused,
    check_not_expired,
    check_role,
    from_auth_context,
    from_metadata,
    set_caller,
)

OnRefusal = Callable[[Refused, Identity | None, str], None]  # why, who if that is known, the method
OnFailure = Callable[[Exception, Identity, str], None]  # what went wrong, whose call it was, the method
CODES = {  # of refusals after which a peer may come again: with a newer certificate, or with fewer calls. After any other it would be refused again.
    "certificate": grpc.StatusCode.UNAUTHENTICATED,
    "expired": grpc.StatusCode.UNAUTHENTICATED,
    "calls": grpc.StatusCode.RESOURCE_EXHAUSTED,
}
MOST_CALLS = 32  # open at a time, of one name; a client needs five, and as many again for those of a link that broke


def _log_failure(error: Exception, identity: Identity, method: str) -> None:
    logging.getLogger("hsfl.deploy").error("%s failed for %s", method, identity.name, exc_info=error)


def _log_problem(sentence: str) -> None:
    logging.getLogger("hsfl.deploy").warning("%s", sentence)


@contextmanager
def _peer_may_go() -> Iterator[None]:
    """End a call whose peer is gone as a cancelled one: gRPC would log a traceback for each, and a peer can end thousands."""
    try:
        yield
    except (grpc.aio.UsageError, grpc.aio.InternalError):
        raise asyncio.CancelledError from None


@dataclass(eq=False)
class _Call:
    """A call that is being handled."""

    identity: Identity
    task: asyncio.Task[Any]
    ended: Refused | None = None


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Checks who calls. roles: the roles that may call each method. denylist: None means no TLS, on loopback, where a
    header and no certificate says who calls. on_problem: told what is wrong with the denylist's file. on_admitted: told a
    caller's connection, as gRPC writes it, and name. most_calls: of one name, open at a time."""

    def __init__(
        self,
        roles: Mapping[str, Collection[str]],
        denylist: Denylist | None,
        on_refusal: OnRefusal = lambda refused, identity, method: None,
        on_failure: OnFailure = _log_failure,
        on_problem: Callable[[str], None] = _log_problem,
        on_admitted: Callable[[str, str], None] = lambda peer, name: None,
        most_calls: int = MOST_CALLS,
    ) -> None:
        self._roles, self._denylist, self._most_calls = dict(roles), denylist, most_calls
        self._on_refusal, self._on_failure, self._on_admitted = on_refusal, on_failure, on_admitted
        self._on_problem, self._known_problem = on_problem, denylist.problem if denylist is not None else None
        self._calls: set[_Call] = set()
        self._num_calls = Counter[str]()  # of `_calls`, by name

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Put the check in front of a handler."""
        handler = await continuation(details)
        return None if handler is None else self._guarded(handler, details.method)

    async def watch(self, period_s: float = 1.0) -> None:
        """End open calls whose certificate was revoked or has expired, every `period_s`. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(period_s)
            self.end_refused_calls()

    def end_refused_calls(self) -> int:
        """End the open calls of certificates that are revoked or have expired by now; returns how many."""
        if self._denylist is not None:
            self._denylist.reread()
            self._log_denylist_problem(self._denylist.problem)
        ended = 0
        for call in self._calls:
            if call.ended is None and (refused := self._reason_to_refuse(call.identity)) is not None:
                call.ended = refused
                call.task.cancel()
                ended += 1
        return ended

    def _log_denylist_problem(self, problem: str | None) -> None:
        """Say once that the denylist cannot be read: until it can, nobody new is revoked."""
        if problem is not None and problem != self._known_problem:
            self._on_problem(f"the denylist of before stays in force: {problem}")
        self._known_problem = problem

    def _identify(self, context: Any) -> Identity:
        if self._denylist is None:
            return from_metadata(context.invocation_metadata() or ())
        return from_auth_context(context.auth_context())

    def _check_certificate(self, identity: Identity) -> None:
        if self._denylist is not None:
            self._denylist.reread()
            if identity.serial in self._denylist:
                raise Refused("revoked", f"{identity.name}'s certificate {identity.serial:x} was revoked")
        check_not_expired(identity)

    def _reason_to_refuse(self, identity: Identity) -> Refused | None:
        try:
            self._check_certificate(identity)
        except Refused as refused:
            return refused
        return None

    @asynccontextmanager
    async def _admitted(self, context: Any, method: str) -> AsyncIterator[None]:
        """Run a handler's body for a caller who may call; anyone else hears why not.

        The headers are sent before a call can be ended. gRPC sends them with the first message otherwise, and to
        abort while that is on its way fails, so that the peer would wait for ever.
        """
        call = await self._check_caller(context, method)
        self._calls.add(call)
        self._num_calls[call.identity.name] += 1
        try:
            await context.send_initial_metadata(())
            yield
        except asyncio.CancelledError:
            if call.ended is None:  # the peer went away, or the server stops
                raise
            call.task.uncancel()
            await self._refuse(context, call.ended, call.identity, method)
        except Refused as refused:  # a handler's own, such as a name that is not the certificate's
            await self._refuse(context, refused, call.identity, method)
        except (
            grpc.aio.AbortError,
            grpc.aio.UsageError,
            grpc.aio.InternalError,
        ):  # a handler's own refusal, or a peer that is gone
            raise
        except Exception as error:
            self._on_failure(error, call.identity, method)
            await context.abort(grpc.StatusCode.INTERNAL, "the server could not do this; its log says why")
        finally:
            self._calls.discard(call)
            self._num_calls[call.identity.name] -= 1
            if not self._num_calls[call.identity.name]:
                del self._num_calls[call.identity.name]

    async def _check_caller(self, context: Any, method: str) -> _Call:
        identity, task = None, asyncio.current_task()
        assert task is not None
        try:
            identity = self._identify(context)
            self._check_certificate(identity)
            check_role(identity, self._roles.get(method, ()), method)
            self._check_num_calls(identity)
        except Refused as refused:
            await self._refuse(context, refused, identity, method)
            raise  # not reached: to abort is to raise
        set_caller(identity)
        self._on_admitted(context.peer(), identity.name)
        return _Call(identity, task)

    def _check_num_calls(self, identity: Identity) -> None:
        if (count := self._num_calls[identity.name]) >= self._most_calls:
            raise Refused("calls", f"{identity.name} has {count} calls open, which is the most; end some, or try again")

    async def _refuse(self, context: Any, refused: Refused, identity: Identity | None, method: str) -> None:
        self._on_refusal(refused, identity, method)
        await context.abort(CODES.get(refused.reason, grpc.StatusCode.PERMISSION_DENIED), refused.sentence)

    def _guarded(self, handler: Any, method: str) -> Any:
        """The same handler behind the check. A handler may return its answer, write it to the context, or yield it.

        Whatever its flow is, gRPC sees a stream both ways, which is the same on the wire: gRPC would read a single request, of any
        size, before anybody has looked who calls. What a handler yields is written here: gRPC would wait for the write outside of the
        check, and nobody would tell the peer of a call that is ended meanwhile.
        """
        inner = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        yields = inspect.isasyncgenfunction(inner)
        assert yields or inspect.iscoroutinefunction(inner), f"the handler of {method} is not async"

        async def answers(requests: Any, context: Any) -> None:
            with _peer_may_go():
                async with self._admitted(context, method):
                    request = requests if handler.request_streaming else await context.read()
                    if request is grpc.aio.EOF:
                        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{method} was called without a request")
                    if yields:
                        async with aclosing(inner(request, context)) as messages:
                            async for message in messages:
                                await context.write(message)
                    elif (answer := await inner(request, context)) is not None:
                        await context.write(answer)

        return grpc.stream_stream_rpc_method_handler(answers, handler.request_deserializer, handler.response_serializer)
