"""Ports of this machine that stay free until the program takes them, and while it is away for a moment."""

import random
import socket
from pathlib import Path

_held: list[socket.socket] = []


def free_port() -> int:
    """One that neither another test nor anybody's outgoing connection gets, as long as this process lives.

    The system gives no connection a port from here. Its namesake of UDP is held to tell the other tests.
    """
    while True:
        port, holder = random.choice(_given_to_nobody()), socket.socket(type=socket.SOCK_DGRAM)
        try:
            holder.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("0.0.0.0", port))
        except OSError:
            holder.close()
            continue
        _held.append(holder)
        return port


def _given_to_nobody() -> list[int]:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    return [port for port in range(10_000, 65_536) if not first <= port <= last]


def closed_port() -> int:
    """One at which nobody answers: it is taken, and not listened to."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    _held.append(taken)
    return int(taken.getsockname()[1])
