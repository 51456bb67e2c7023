"""A whole deployment inside the test's process: quick, and open to clients that do not keep to the protocol."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsfl.deploy.demo import free_port
from hsfl.deploy.logs import Log, open_log
from hsfl.deploy.processes import run_client, serve_edge, serve_main
from hsfl.deploy.settings import ClientSettings, EdgeSettings, MainSettings
from tests.deploy.fleet import changed, samples


@dataclass
class Inside:
    """Servers and clients as tasks of one event loop."""

    folder: Path
    run: dict[str, Any]
    names: Sequence[str] = ("ada", "bo", "cy", "di")
    more: dict[str, Any] = field(default_factory=dict)  # settings of the main server
    certs: Path | None = None  # the CA's folder; None: plaintext
    logs: dict[str, io.StringIO] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run = changed(self.run, data={"name": f"npz:{samples(self.folder)}"})
        self.main, self.edge = (f"127.0.0.1:{free_port()}" for _ in range(2))

    def log(self, name: str) -> Log:
        self.logs[name] = io.StringIO()
        return open_log(name, True, self.logs[name])

    def events(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.logs[name].getvalue().splitlines()]

    def client_settings(self, name: str) -> ClientSettings:
        seat, data = self.names.index(name), {"name": self.run["data"]["name"]}
        return ClientSettings(
            name=name, main=self.main, edge=self.edge, data=data, as_client=seat, measure_s=0.0, certs=self.bundle(name)
        )

    def bundle(self, name: str) -> str | None:
        return None if self.certs is None else str(self.certs / name)

    async def client(self, name: str) -> str:
        return await run_client(self.client_settings(name), self.certs is None, self.log(name))

    async def _all(self, clients: Sequence[Callable[[], Awaitable[Any]]]) -> Any:
        settings = {
            "clients": tuple(self.names),
            "min_clients": len(self.names),
            "certs": self.bundle("main"),
        } | self.more
        heads = EdgeSettings(listen=self.edge, out=str(self.folder / "edge"), certs=self.bundle("edge"))
        plain = self.certs is None
        main = MainSettings(listen=self.main, edge=self.edge, out=str(self.folder / "run"), run=self.run, **settings)
        edge = asyncio.create_task(serve_edge(heads, plain, self.log("edge")))
        tasks = [asyncio.ensure_future(client()) for client in clients]
        try:
            return await asyncio.wait_for(serve_main(main, plain, self.log("main")), 120)
        finally:
            for task in (*tasks, edge):
                task.cancel()
            await asyncio.gather(*tasks, edge, return_exceptions=True)

    def go(self, *others: Callable[[], Awaitable[Any]], honest: Sequence[str] | None = None) -> Any:
        """Run the deployment to its end with these honest clients (all by default) and others; the main server's summary."""
        mine = [lambda name=name: self.client(name) for name in (self.names if honest is None else honest)]
        return asyncio.run(self._all([*mine, *others]))

    def rounds(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "run" / "rounds.jsonl").read_text().splitlines()]
