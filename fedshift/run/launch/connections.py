"""Identify the user at the other end of a local connection, as far as the system tells (Linux does)."""

import ipaddress
import struct
from pathlib import Path

Peer = tuple[str, int]  # address and port
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # of the connections of this machine, with their users
ESTABLISHED = 1


def user_of(client: Peer, server: Peer) -> int | None:
    """Return the user id of a local connection, by its two ends; None if there is none.

    The ports alone are not enough: another user may bind the same one on another loopback address. Nothing is
    remembered: another process may soon use the port.
    """
    ends, port = (_parsed(client), _parsed(server)), f":{client[1]:04X} "
    for table in TABLES:
        for line in table.read_text().splitlines() if table.is_file() else ():
            if port not in line:  # spares most of the work
                continue
            _, local, remote, state, *rest = line.split()
            # One that its owner has let go belongs to user 0 by this table: only a living one counts.
            if int(state, 16) == ESTABLISHED and (_entry(local), _entry(remote)) == ends:
                return int(rest[3])
    return None


def is_loopback(host: str) -> bool:
    """Tell whether an address is of this machine alone."""
    return _unmapped(ipaddress.ip_address(host)).is_loopback


def _unmapped(address: Address) -> Address:
    """Convert a mapped IPv4 address: a socket on :: sees IPv4 callers as ::ffff:a.b.c.d."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _parsed(end: Peer) -> tuple[Address, int]:
    return _unmapped(ipaddress.ip_address(end[0])), end[1]


def _entry(text: str) -> tuple[Address, int]:
    """Parse address and port of a table entry: hexadecimal words of four bytes in machine order."""
    host, _, port = text.partition(":")
    words = struct.unpack(f">{len(host) // 8}I", bytes.fromhex(host))
    return _unmapped(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))), int(port, 16)
