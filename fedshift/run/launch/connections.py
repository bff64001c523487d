"""Whose a connection between two processes of this machine is, as far as the system tells (Linux does)."""

import errno
import ipaddress
import os
import socket
import struct
from pathlib import Path

Peer = tuple[str, int]  # address and port
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Ends = tuple[tuple[Address, int], tuple[Address, int]]

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # of the connections of this machine, with their users
ESTABLISHED = 1

# The kernel's sock_diag(7). All numbers are in the machine's order but for the ports.
SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLMSG_ERROR, NLM_F_REQUEST = 4, 20, 2, 1
HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
REQUEST = struct.Struct("=BBBBI")  # family, protocol, extensions, padding, states
ANY_SOCKET = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # interface, and a cookie that says: whichever it is
STATE_AT, USER_AT = HEADER.size + 1, HEADER.size + 4 + 48 + 12  # in the answer's inet_diag_msg
MOST_BYTES = 4096  # of an answer


def user_of(client: Peer, server: Peer) -> int | None:
    """Return the user id of a local connection, by its two ends; None if there is none.

    The ports alone are not enough: another user may bind the same one on another loopback address. Nothing is
    remembered: another process may soon use the port.
    """
    ends = _parsed(client), _parsed(server)
    try:
        return _asked(ends)
    except (OSError, AttributeError):  # a system or kernel without sock_diag, or a sandbox that withholds it
        return _looked_up(ends)


def is_loopback(host: str) -> bool:
    """Tell whether an address is of this machine alone."""
    return _unmapped(ipaddress.ip_address(host)).is_loopback


def _unmapped(address: Address) -> Address:
    """Convert a mapped IPv4 address: a socket on :: sees IPv4 callers as ::ffff:a.b.c.d."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _parsed(end: Peer) -> tuple[Address, int]:
    return _unmapped(ipaddress.ip_address(end[0])), end[1]


def _asked(ends: Ends) -> int | None:
    """Ask the kernel for this one connection: some 0.02 ms, where its table takes 3 ms and more.

    Raises:
        OSError: If it does not answer such questions.
    """
    (host, port), (other_host, other_port) = ends
    if host.version != other_host.version:
        return None
    family = socket.AF_INET if host.version == 4 else socket.AF_INET6
    connection = struct.pack(">HH16s16s", port, other_port, host.packed, other_host.packed) + ANY_SOCKET
    request = REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << ESTABLISHED) + connection
    header = HEADER.pack(HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, SOCK_DIAG) as kernel:
        kernel.sendto(header + request, (0, 0))
        answer = kernel.recv(MOST_BYTES, socket.MSG_DONTWAIT)  # it is there when sendto returns
    if HEADER.unpack_from(answer)[1] == NLMSG_ERROR:
        code = -struct.unpack_from("=i", answer, HEADER.size)[0]
        if code == errno.ENOENT:
            return None
        raise OSError(code, os.strerror(code))
    if answer[STATE_AT] != ESTABLISHED:  # a listener, or a connection that was let go
        return None
    return int(struct.unpack_from("=I", answer, USER_AT)[0])


def _looked_up(ends: Ends) -> int | None:
    """Look the connection up in the kernel's table."""
    for table in TABLES:
        for line in table.read_text().splitlines()[1:] if table.is_file() else ():
            _, local, remote, state, *rest = line.split()
            # One that its owner has let go belongs to user 0 by this table: only a living one counts.
            if int(state, 16) == ESTABLISHED and (_entry(local), _entry(remote)) == ends:
                return int(rest[3])
    return None


def _entry(text: str) -> tuple[Address, int]:
    """Parse address and port of a table entry: hexadecimal words of four bytes in machine order."""
    host, _, port = text.partition(":")
    words = struct.unpack(f">{len(host) // 8}I", bytes.fromhex(host))
    return _unmapped(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))), int(port, 16)
