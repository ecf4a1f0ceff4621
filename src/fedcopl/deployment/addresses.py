"""Addresses of servers, proxies on the way to them, and names of sites.

Sites only make outgoing connections, to one address and port, so a site behind NAT or a firewall needs nothing else.
If connections have to go through a proxy (`https_proxy` in the environment), Flower's client and `connect` open a
tunnel. TLS runs inside the tunnel: the proxy sees the server's name and the amount of traffic.
"""

import http.client
import os
import socket
from base64 import b64encode
from collections.abc import Collection, MutableMapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from ..errors import ConfigError

IPAddress = IPv4Address | IPv6Address
_NO_PROXY = ("no_proxy", "NO_PROXY")  # programs read one or the other
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
_MAX_NAME = 60  # characters of a site's name


def check_site_name(name: str, origin: str) -> None:
    """Raise `ConfigError` for an invalid name of a site; `origin` is the option or file that has it."""
    if not name.isprintable() or name != name.strip() or not 0 < len(name) <= _MAX_NAME:
        raise ConfigError(f"{origin}: {name!r} must have 1 to {_MAX_NAME} printable characters, no space at its ends")


def own_address(host: str) -> str:
    """Return the address by which this machine reaches its own server that listens on `host`."""
    ip = _parse_ip(host)
    if ip is None or not ip.is_unspecified:
        return host
    return "127.0.0.1" if ip.version == 4 else "::1"


def with_port(host: str, port: int) -> str:
    """Return an address with its port; an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_ip_addresses(host: str) -> frozenset[IPAddress]:
    """Return the addresses, other than loopback, that count as this machine for a server that listens on `host`.

    Only this machine can connect from the address that the server listens on. This does not hold for a server that
    listens on all addresses: connections to a port forwarded into a container may have the container's own address.
    """
    ip = _parse_ip(host)
    if ip is not None:
        return frozenset() if ip.is_unspecified else frozenset({ip})
    addresses = {str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return frozenset(ip for ip in map(_parse_ip, addresses) if ip is not None)


def is_this_machine(client: str, own: Collection[IPAddress]) -> bool:
    """Return whether a client's address is loopback or one of `own`, the other addresses of this machine."""
    ip = _parse_ip(client)
    return ip is not None and (ip.is_loopback or ip in own)


def _parse_ip(text: str) -> IPAddress | None:
    """Parse an IP address; None for a host name. IPv4 addresses mapped into IPv6 are returned as IPv4."""
    try:
        ip = ip_address(text)
    except ValueError:
        return None
    return (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip


def proxy_to(host: str) -> str:
    """Return the address of the proxy for connections to this host, or an empty string."""
    return "" if host in _THIS_MACHINE or proxy_bypass(host) else getproxies().get("https", "")


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """Open a connection, through a proxy if one is configured; raise `OSError` if that fails."""
    proxy = proxy_to(host)
    if not proxy:
        return socket.create_connection((host, port), timeout)
    url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    headers = {}
    if url.username:
        login = f"{unquote(url.username)}:{unquote(url.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=timeout)
    connection.set_tunnel(host, port, headers)
    try:
        connection.connect()
    except http.client.HTTPException as error:
        raise OSError(f"invalid response of the proxy {strip_credentials(proxy)}: {type(error).__name__}") from error
    return connection.sock


def strip_credentials(proxy: str) -> str:
    """Return the host and port of a proxy, without the scheme, user name and password of its address.

    >>> strip_credentials("http://me:secret@proxy.example:3128")
    'proxy.example:3128'
    """
    return proxy.rpartition("://")[2].rpartition("@")[2]


def bypass_proxy_for_localhost(environment: MutableMapping[str, str] = os.environ) -> None:
    """Exclude this machine from the proxy, for connections between a server and its child processes."""
    hosts = ",".join(environment.get(name, "") for name in _NO_PROXY).split(",")
    hosts = [host.strip() for host in hosts if host.strip()]
    if "*" not in hosts:
        hosts += _THIS_MACHINE
    environment.update(dict.fromkeys(_NO_PROXY, ",".join(dict.fromkeys(hosts))))
