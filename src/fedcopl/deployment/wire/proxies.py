"""The way out of a site's network: straight, or through the proxy that its machine is set up with.

Sites only call out, to one address and port, so that a site behind NAT or a firewall needs nothing else. Where calls
have to go through a proxy (`https_proxy` in the environment), Flower's client asks it for a tunnel, and so do we when
we look first. TLS runs inside the tunnel: the proxy sees the server's name and how much is said, not what.
"""

import http.client
import os
import socket
from base64 import b64encode
from collections.abc import MutableMapping
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

NO_PROXY = ("no_proxy", "NO_PROXY")  # some programs read the one, some the other
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


def proxy_to(host: str) -> str:
    """The address of the proxy on the way to this machine; nothing where there is none."""
    return "" if host in THIS_MACHINE or proxy_bypass(host) else getproxies().get("https", "")


def connect(host: str, port: int, patience: float) -> socket.socket:
    """An open connection, by way of the proxy where there is one; `OSError` if nobody is there."""
    proxy = proxy_to(host)
    return _tunnel(proxy, host, port, patience) if proxy else socket.create_connection((host, port), patience)


def _tunnel(proxy: str, host: str, port: int, patience: float) -> socket.socket:
    there = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    headers = {}
    if there.username:
        login = f"{unquote(there.username)}:{unquote(there.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    connection = http.client.HTTPConnection(there.hostname or "", there.port or 80, timeout=patience)
    connection.set_tunnel(host, port, headers)
    try:
        connection.connect()
    except http.client.HTTPException as error:
        raise OSError(f"the proxy {without_login(proxy)} answers nonsense: {type(error).__name__}") from error
    return connection.sock


def without_login(proxy: str) -> str:
    """
    >>> without_login("http://me:secret@proxy.example:3128")
    'proxy.example:3128'
    """
    return proxy.rpartition("://")[2].rpartition("@")[2]


def spare_this_machine(environment: MutableMapping[str, str] = os.environ) -> None:
    """A server and its helpers talk to each other on this machine: no proxy is to come between them."""
    lists = ",".join(environment.get(name, "") for name in NO_PROXY).split(",")
    listed = list(dict.fromkeys(one.strip() for one in lists if one.strip()))
    missing = [one for one in THIS_MACHINE if one not in listed and "*" not in listed]
    environment.update(dict.fromkeys(NO_PROXY, ",".join([*listed, *missing])))
