"""The process that works on a message looks for the node's key, and asks its signer for what only the key may do.

On code that named the key's file in the environment, that process could sign whatever it liked, and so take the node's
place at the SuperLink.
"""

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec
from real_node import fingerprint
from refusals import refused
from support import APP_PATH, until

from fedshift.run.launch import credentials, forks
from fedshift.site.deploy.superexec import NodeExecutor
from fedshift_app.node import node_key
from fedshift_core.errors import FedShiftError
from fedshift_core.secure import identity
from fedshift_core.secure.group import Group
from fedshift_core.secure.identity import Signed
from fedshift_core.secure.statement import Statement

STATED = Statement(20, (True, False))
#: The node's program, which in the place of a ClientApp writes down what it finds of the key, and signs.
PROGRAM = """
import json, os, sys
from pathlib import Path
import numpy
from fedshift.site.deploy import fork_server
from fedshift_app.node import node_key

def work(task):
    opened = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.exists(entry.path)]
    signed = node_key.signer().sign("run", 1, (2, "training"), (STATED, b"b", b"B"))
    found = {"environment": dict(os.environ), "commands": [sys.orig_argv, sys.argv], "opened": opened,
             "public": signed.public.hex(), "signature": signed.signature.hex()}
    Path(task["address"] + ".part").write_text(json.dumps(found))
    os.rename(task["address"] + ".part", task["address"])
    os._exit(0)

fork_server.work = work
"""
COLD = "import json, sys, signs; signs.node_key.use(int(sys.argv[1])); signs.work(json.loads(sys.stdin.read()))"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return next(path for path in credentials.make_node(tmp_path / "keys", "north") if path.suffix == ".key")


@pytest.fixture
def signer(key: Path) -> Iterator[int]:
    with node_key.serve(key) as asked:
        yield asked.fileno()


@pytest.fixture(params=["warm", "cold"])
def executor(
    request: pytest.FixtureRequest, signer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NodeExecutor]:
    (tmp_path / "signs.py").write_text(PROGRAM.replace("STATED", repr(STATED.written())))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{APP_PATH}")
    program = [sys.executable, "-P", "-c", COLD]
    yield NodeExecutor(signer, warm=request.param == "warm", modules=["signs"], program=program)
    forks.end()


def test_it_can_sign_but_not_read(executor: NodeExecutor, key: Path, tmp_path: Path) -> None:
    file = tmp_path / "found"
    executor.launch(ExecutionSpec(TaskType.CLIENT_APP, str(file), "t", True, None, False, 1, False, 1, "one"))
    assert until(file.is_file)
    found = json.loads(file.read_text())
    text = json.dumps([found["environment"], found["commands"], found["opened"]])
    assert "north" not in text.replace(str(tmp_path), "") and "PRIVATE" not in text
    signed = Signed(bytes.fromhex(found["public"]), bytes.fromhex(found["signature"]))
    group = Group(2, (0, 1), (b"a", b"b"), (b"A", b"B"), (STATED,) * 2, (1.0, 1.0), 2, 2.0)
    trusted = [fingerprint(key.with_suffix(".pub"))]
    identity.check(group, [Signed(b"", b""), signed], "run", 0, trusted)
    with refused(FedShiftError, "node 1"):
        identity.check(group, [Signed(b"", b""), signed], "other", 0, trusted)


@pytest.fixture
def asked(signer: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(node_key, "_asked", None)
    node_key.use(os.dup(signer))
    yield node_key._signed
    node_key._asked.close()  # type: ignore[union-attr]


def test_the_superlink_takes_none_of_its_signatures_for_a_login(asked: Any) -> None:
    """Flower's SuperNode signs the time, 32 letters, which have the length of a digest."""
    now = datetime.now(UTC).isoformat().encode()
    assert len(now) == node_key.DIGEST
    signed = asked(now)
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), signed.public)
    for hashed in (hashes.SHA256(), hashes.SHA384()):
        with pytest.raises(InvalidSignature):
            public.verify(signed.signature, now, ec.ECDSA(hashed))


def test_nothing_but_a_digest_is_signed(asked: Any, tmp_path: Path) -> None:
    for length in (0, 31, 33, 10_000):
        with refused(FedShiftError, "key"):
            asked(bytes(length))
        assert len(asked(bytes(node_key.DIGEST)).signature) > 90  # it goes on
    with refused(FedShiftError, "north.key"):  # no key: a SuperNode does not start
        node_key.serve(tmp_path / "north.key")
