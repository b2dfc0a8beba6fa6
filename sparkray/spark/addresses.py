"""Addresses of this host, as other hosts reach it.

A host often knows its own name as a loopback address (Debian writes 127.0.1.1 into
/etc/hosts), which is of no use to others.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket

#: Where to look for the way out, where nothing better is known: an address that is kept
#: for documentation, which nobody has.
_ANYWHERE = ("192.0.2.1", 9)


def own_address(name: str, *, loopback: bool = False) -> str:
    """Return the IPv4 address that a name stands for, if it is this host's; else "".

    Args:
        loopback: whether one that only this host reaches will do.
    """
    try:
        address = socket.gethostbyname(name) if name else ""
        if not address or (is_loopback(address) and not loopback):
            return ""
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError:
        return ""
    return address


def is_loopback(host: str) -> bool:
    """Tell whether a host, by name or address, is this one, seen from itself."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def address_towards(host: str, port: int) -> str:
    """Return our address as another host sees it; "" if there is no way to that."""
    with (
        contextlib.suppress(OSError, ValueError, OverflowError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
    ):  # sends nothing
        probe.connect((host, port) if host else _ANYWHERE)
        return str(probe.getsockname()[0])
    return ""
