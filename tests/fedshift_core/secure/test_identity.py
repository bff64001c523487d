"""Long-term keys of nodes: fingerprints as SSH has them, and which groups of a secure sum they let pass."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from real_node import fingerprint
from refusals import refused

from fedshift.run.launch import credentials
from fedshift_core.errors import FedShiftError
from fedshift_core.secure import identity
from fedshift_core.secure.group import ANSWERS, TRAINING, Group
from fedshift_core.secure.identity import FINGERPRINT, Key, Signed, Signer
from fedshift_core.secure.statement import Statement

NODES = (0, 3, 5)
AT = (2, TRAINING)
STATED = Statement(20, (True, False))
SAID = STATED.written()


class Sites:
    """Three nodes with keys, and a group of a sum that they have signed."""

    def __init__(self, folder: Path) -> None:
        self.signers, self.trusted = {}, []
        for node in NODES:
            private, public = sorted(credentials.make_node(folder, f"n{node}"), key=lambda path: path.suffix)
            self.signers[node] = Signer(Key(private).sign)
            self.trusted.append(fingerprint(public))
        self.group = Group(2, NODES, (b"a", b"b", b"c"), (b"A", b"B", b"C"), (STATED,) * 3, (1.0,) * 3, 3, 3.0)
        self.signed = [
            self.signers[node].sign("run", node, AT, (SAID, *pair))
            for node, *pair in zip(NODES, self.group.cipher_keys, self.group.mask_keys, strict=True)
        ]

    def check(self, *named: str, **other: Any) -> None:
        """Expect a refusal that names these."""
        given = {"group": self.group, "signed": self.signed, "run": "run", **other}
        with refused(FedShiftError, *named):
            identity.check(given["group"], given["signed"], given["run"], 0, self.trusted)

    def with_signed(self, place: int, signed: Signed) -> list[Signed]:
        return [*self.signed[:place], signed, *self.signed[place + 1 :]]


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path)


def test_a_group_of_trusted_nodes_passes_whether_or_not_one_trusts_itself(sites: Sites) -> None:
    identity.check(sites.group, sites.signed, "run", 0, sites.trusted)
    identity.check(sites.group, sites.signed, "run", 0, sites.trusted[1:])
    identity.check(sites.group, sites.with_signed(0, Signed(b"", b"")), "run", 0, sites.trusted)


def test_keys_that_were_not_signed_for_this_sum_by_trusted_nodes_are_refused(sites: Sites) -> None:
    right, third = "node 3", sites.signers[3]
    for group in (
        replace(sites.group, mask_keys=(b"A", b"X", b"C")),  # the server's key in place of the node's
        replace(sites.group, statements=(STATED, replace(STATED, images=1), STATED)),
        replace(sites.group, server_round=3),
        replace(sites.group, purpose=ANSWERS),
    ):
        sites.check(right, group=group)
    sites.check(right, run="another")
    for wrong in (
        third.sign("run", 5, AT, (SAID, b"b", b"B")),
        Signed(sites.signed[1].public, b"0" * 100),
        Signed(b"0" * 49, sites.signed[1].signature),
        Signed(b"", b""),
    ):
        sites.check(right, signed=sites.with_signed(1, wrong))
    sites.check("2, nodes: 3", signed=sites.signed[:2])
    # One node cannot stand for two.
    sites.check("node 5", signed=sites.with_signed(2, third.sign("run", 5, AT, (SAID, b"c", b"C"))))
    fingerprint = sites.trusted.pop(1)
    with pytest.raises(FedShiftError, match=f"(?s)node 3 .*{re.escape(fingerprint)}.*secure_sums.trusted"):
        identity.check(sites.group, sites.signed, "run", 0, sites.trusted)


def test_a_fingerprint_is_that_of_ssh(sites: Sites, tmp_path: Path) -> None:
    assert all(FINGERPRINT.fullmatch(name) for name in sites.trusted)
    if which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "n0.pub"], capture_output=True, text=True, check=True)
    assert sites.trusted[0] in shown.stdout.split()


def test_what_is_no_key_of_a_node_is_refused_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "text.key").write_text("no key")
    p256: Any = ec.generate_private_key(ec.SECP256R1())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    for name, key in (("ed", ed25519.Ed25519PrivateKey.generate()), ("p256", p256)):
        (tmp_path / f"{name}.key").write_bytes(key.private_bytes(*form))
    for name, why in (("absent", "read"), ("text", "read"), ("ed", "P-384"), ("p256", "P-384")):
        with refused(FedShiftError, f"{name}.key", why):
            Key(tmp_path / f"{name}.key")
