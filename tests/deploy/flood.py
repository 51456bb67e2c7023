"""Connections that never say anything: what a stranger without a certificate can open."""

import resource
import socket
import threading
from contextlib import suppress

import pytest

STRANGER = "127.0.0.3"  # whom honest clients are not


def room_for(count: int) -> None:
    """Let this process have so many descriptors and some more, or skip the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} descriptors, and {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


class HalfOpen:
    """So many open connections to a port, from an address of loopback; those that the server closes are opened again every second
    until `close`."""

    def __init__(self, port: int, count: int, source: str = STRANGER) -> None:
        self.port, self.source, self.ending = port, source, threading.Event()
        self.sockets = [self._open() for _ in range(count)]
        self.thread = threading.Thread(target=self._keep_open, daemon=True)
        self.thread.start()

    def _open(self) -> socket.socket:
        place = socket.socket()
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((self.source, 0))
        place.setblocking(False)
        place.connect_ex(("127.0.0.1", self.port))
        return place

    def num_open(self) -> int:
        """How many of them the server has not closed."""
        return sum(self._is_open(place) for place in self.sockets)

    @staticmethod
    def _is_open(place: socket.socket) -> bool:
        try:
            return bool(place.recv(100))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _keep_open(self) -> None:
        while not self.ending.wait(1.0):
            for k, place in enumerate(self.sockets):
                if not self._is_open(place):
                    place.close()
                    with suppress(OSError):  # no port is free for a moment
                        self.sockets[k] = self._open()

    def close(self) -> None:
        self.ending.set()
        self.thread.join()
        for place in self.sockets:
            place.close()
