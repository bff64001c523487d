"""The owner of a local connection, by the kernel's table."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedshift.run.launch import connections

pytestmark = pytest.mark.skipif(not connections.TABLES[0].is_file(), reason="this system has no /proc/net/tcp")


@contextmanager
def connected(host: str, called: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a server's end of a connection, and its caller's."""
    family = {True: socket.AF_INET6, False: socket.AF_INET}
    server = socket.create_server((host, 0), family=family[":" in host], dualstack_ipv6=host == "::")
    with server, socket.socket(family[":" in called]) as caller:
        caller.connect((called, server.getsockname()[1]))
        with server.accept()[0] as accepted:
            yield accepted, caller


def test_a_connection_belongs_to_its_caller() -> None:
    with connected("127.0.0.1", "127.0.0.1") as (accepted, caller):
        here, there = caller.getsockname(), accepted.getsockname()
        assert connections.user_of(here, there) == os.getuid()
        assert connections.user_of((f"::ffff:{here[0]}", here[1]), there) == os.getuid()
        assert connections.user_of(("127.0.0.9", here[1]), there) is None  # the same port of another address
        assert connections.user_of(there, (there[0], 1)) is None  # a listener, or nobody
        assert connections.user_of(("::1", here[1]), there) is None
        caller.shutdown(socket.SHUT_RDWR)
        caller.close()
        assert connections.user_of(here, there) is None  # a connection that was let go is nobody's


@pytest.mark.skipif(os.getuid() != 0, reason="only root can call as another user")
@pytest.mark.parametrize("user", [65534, 4321])
def test_another_users_connection_is_not_ours(user: int) -> None:
    call = (  # what is imported later may be out of the other user's reach
        "import os, socket, sys\n"
        "os.setuid(int(sys.argv[2]))\n"
        "caller = socket.socket()\n"
        "caller.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "caller.recv(1)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        port = server.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", call, str(port), str(user)]) as other:
            with server.accept()[0] as accepted:
                assert connections.user_of(accepted.getpeername(), accepted.getsockname()) == user
            assert other.wait(30) == 0
