"""A link that can be cut or slowed: a forwarder between a client and a server, on loopback."""

import socket
import threading
import time
from contextlib import suppress


class Proxy:
    """Forwards connections to a port until it is cut; `mend` lets new connections through. pause_s: before every piece of up to
    64 KiB that it forwards."""

    def __init__(self, target: int) -> None:
        self.target, self.whole, self.open, self.pause_s = target, True, set[socket.socket](), 0.0
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.door.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.door.accept()
                if not self.whole:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                self.open |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while content := here.recv(1 << 16):
                time.sleep(self.pause_s)
                there.sendall(content)
        self._close(here, there)

    def _close(self, *ends: socket.socket) -> None:
        for end in ends:
            self.open.discard(end)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        """Break every connection, and let no new one through."""
        self.whole = False
        self._close(*list(self.open))

    def mend(self) -> None:
        self.whole = True

    def close(self) -> None:
        self.cut()
        self.door.close()
