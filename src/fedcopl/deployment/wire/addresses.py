"""Network addresses of a server: by which it reaches itself, and which callers are this very machine."""

import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address

AddressNumber = IPv4Address | IPv6Address


def own_address(host: str) -> str:
    """The name or number by which this machine reaches its own server that listens on `host`."""
    number = _number(host)
    if number is None or not number.is_unspecified:
        return host
    return "127.0.0.1" if number.version == 4 else "::1"


def with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_numbers(host: str) -> frozenset[AddressNumber]:
    """What a server that listens on `host` alone takes for its own machine beside loopback.

    Nobody else can call from the very address that is listened on. For a server that listens everywhere that is not
    good enough: what forwards the port into a container may do so from the container's own address.
    """
    number = _number(host)
    if number is not None:
        return frozenset() if number.is_unspecified else frozenset({number})
    found = {str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return frozenset(number for number in map(_number, found) if number is not None)


def is_this_machine(client: str, own: Collection[AddressNumber]) -> bool:
    """Whether a caller with this address is on this machine."""
    number = _number(client)
    return number is not None and (number.is_loopback or number in own)


def _number(text: str) -> AddressNumber | None:
    """None for a name; an IPv4 address in IPv6 clothes is what it is."""
    try:
        number = ip_address(text)
    except ValueError:
        return None
    return (number.ipv4_mapped or number) if isinstance(number, IPv6Address) else number
