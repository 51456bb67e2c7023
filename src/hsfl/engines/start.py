"""The engine that a config asks for."""

from collections.abc import Callable

from hsfl.config import RunConfig
from hsfl.engines.engine import Engine, Inline
from hsfl.errors import InputError
from hsfl.framework_table import copy_per_client_names, method
from hsfl.frameworks import find_framework
from hsfl.frameworks.copy_per_client import CopyPerClient


def start_engine(config: RunConfig, say: Callable[[str], None]) -> Engine:
    """Start the engine that the config asks for. A framework that cannot be spread is trained in this process, and `say` prints that."""
    engine = config.engine
    if engine.name in ("auto", "inline"):
        return Inline(engine.threads)
    if (reason := why_not_spread(config)) is not None:
        say(reason)
        return Inline(engine.threads)
    if config.device != "cpu":
        raise InputError(f"engine.name is {engine.name!r} but device is {config.device!r}; set engine.name=inline")
    if engine.name == "ray":
        from hsfl.engines.ray_engine import OnRay  # here, because Ray is an extra

        return OnRay.start(config, say)
    from hsfl.engines.process_engine import Workers  # here, because inline runs need no multiprocessing

    return Workers.start(config, say)


def why_not_spread(config: RunConfig) -> str | None:
    """Why the clients of this framework are trained in one process; None where other processes can train them."""
    name = config.engine.name
    if not method(config.framework).copy_per_client:
        return (
            f"{config.framework} trains its clients in turn or in step, so it runs in one process; engine.name="
            f"{name} spreads {', '.join(copy_per_client_names())}"
        )
    kind = find_framework(config.framework)
    if not issubclass(kind, CopyPerClient):
        return (
            f"engine.name={name} cannot spread {config.framework}, so it runs in one process: {kind.__name__} has copy_per_client "
            "but does not derive from hsfl.HSFL or another framework that trains a copy per client"
        )
    return None
