"""Ports of this machine that no other test gets, also while the program restarts."""

import random
import socket
from pathlib import Path

_bound_sockets: list[socket.socket] = []


def free_port() -> int:
    """Return a TCP port that no other test and no outgoing connection gets as long as this process lives.

    It is outside the range of ports for outgoing connections. The UDP port of the same number is bound as a lock
    between test processes.
    """
    while True:
        port, lock = random.choice(_ports_without_outgoing_connections()), socket.socket(type=socket.SOCK_DGRAM)
        try:
            lock.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("0.0.0.0", port))
        except OSError:
            lock.close()
            continue
        _bound_sockets.append(lock)
        return port


def _ports_without_outgoing_connections() -> list[int]:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    return [port for port in range(10_000, 65_536) if not first <= port <= last]


def closed_port() -> int:
    """Return a port that refuses connections: it is bound, but nothing listens."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    _bound_sockets.append(bound)
    return int(bound.getsockname()[1])
