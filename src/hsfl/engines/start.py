"""The engine that a config asks for."""

from collections.abc import Callable

from hsfl.config import RunConfig
from hsfl.engines.engine import Engine, Inline
from hsfl.errors import InputError
from hsfl.framework_table import copy_per_client_names, method


def start_engine(config: RunConfig, say: Callable[[str], None]) -> Engine:
    """Start the engine that the config asks for. A framework that cannot be spread is trained in this process, and `say` prints that."""
    engine = config.engine
    if engine.name == "inline":
        return Inline()
    if not method(config.framework).copy_per_client:
        say(
            f"{config.framework} trains its clients in turn or in step, so it runs in one process; engine.name="
            f"{engine.name} spreads {', '.join(copy_per_client_names())}"
        )
        return Inline()
    if config.device != "cpu":
        raise InputError(f"engine.name is {engine.name!r} but device is {config.device!r}; set engine.name=inline")
    if engine.name == "ray":
        from hsfl.engines.ray_engine import OnRay  # here, because Ray is an extra

        return OnRay.start(config, say)
    from hsfl.engines.process_engine import Workers  # here, because inline runs need no multiprocessing

    return Workers.start(config, say)
