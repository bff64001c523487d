"""Long-term keys of nodes: fingerprints as SSH has them, and which groups of a secure sum they let pass."""

import subprocess
from dataclasses import replace
from pathlib import Path
from shutil import which

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from support import refusal_of

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
            made = credentials.make_node(folder, f"n{node}")
            private, public = sorted(made, key=lambda path: path.suffix)
            self.signers[node] = Signer(Key(private).sign)
            key = serialization.load_ssh_public_key(public.read_bytes())
            assert isinstance(key, ec.EllipticCurvePublicKey)
            self.trusted.append(identity.fingerprint(key))
        self.group = Group(2, NODES, (b"a", b"b", b"c"), (b"A", b"B", b"C"), (STATED,) * 3, (1.0,) * 3, 3, 3.0)
        self.signed = [
            self.signers[node].sign("run", node, AT, (SAID, *pair))
            for node, *pair in zip(NODES, self.group.cipher_keys, self.group.mask_keys, strict=True)
        ]

    def refusal(self, group: Group | None = None, signed: list[Signed] | None = None, run: str = "run") -> str:
        given = self.signed if signed is None else signed
        return refusal_of(FedShiftError, identity.check, group or self.group, given, run, 0, self.trusted)

    def with_signed(self, place: int, signed: Signed) -> list[Signed]:
        return [*self.signed[:place], signed, *self.signed[place + 1 :]]


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path)


def test_a_group_of_trusted_nodes_passes_whether_or_not_one_trusts_itself(sites: Sites) -> None:
    identity.check(sites.group, sites.signed, "run", 0, sites.trusted)
    identity.check(sites.group, sites.signed, "run", 0, sites.trusted[1:])
    identity.check(sites.group, sites.with_signed(0, Signed(b"", b"")), "run", 0, sites.trusted)


def test_a_node_that_the_owner_does_not_trust_is_refused_and_named(sites: Sites, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    other = Sites(tmp_path / "more")
    text = sites.refusal(signed=sites.with_signed(1, other.signers[3].sign("run", 3, AT, (SAID, b"b", b"B"))))
    assert f"node 3 of the secure sum has the key {other.trusted[1]}, which is not among those" in text
    assert "secure_sums.trusted" in text


def test_keys_that_were_not_signed_for_this_sum_are_refused(sites: Sites) -> None:
    right = "node 3 of the secure sum has a signature that is not right"
    swapped = replace(sites.group, mask_keys=(b"A", b"X", b"C"))  # the server's key in place of the node's
    assert right in sites.refusal(group=swapped)
    other = replace(sites.group, statements=(STATED, replace(STATED, images=1), STATED))
    for group in (other, replace(sites.group, server_round=3), replace(sites.group, purpose=ANSWERS)):
        assert right in sites.refusal(group=group)
    assert right in sites.refusal(run="another")
    assert right in sites.refusal(signed=sites.with_signed(1, sites.signers[3].sign("run", 5, AT, (SAID, b"b", b"B"))))
    for wrong in (Signed(sites.signed[1].public, b"0" * 100), Signed(b"0" * 49, sites.signed[1].signature)):
        assert right in sites.refusal(signed=sites.with_signed(1, wrong))
    assert "node 3 of the secure sum has not signed its keys" in sites.refusal(
        signed=sites.with_signed(1, Signed(b"", b""))
    )
    assert "under keys of a secure sum: 2, nodes: 3" in sites.refusal(signed=sites.signed[:2])


def test_one_node_cannot_stand_for_two(sites: Sites) -> None:
    twice = sites.signers[3].sign("run", 5, AT, (SAID, b"c", b"C"))
    assert "node 5 of the secure sum signs with the key of another node" in sites.refusal(
        signed=sites.with_signed(2, twice)
    )


def test_a_fingerprint_is_that_of_ssh(sites: Sites, tmp_path: Path) -> None:
    assert all(FINGERPRINT.fullmatch(name) for name in sites.trusted)
    if which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "n0.pub"], capture_output=True, text=True, check=True)
    assert sites.trusted[0] in shown.stdout.split()


def test_what_is_no_key_of_a_node_is_refused_with_its_file(tmp_path: Path) -> None:
    assert "absent.key: cannot be read" in refusal_of(FedShiftError, Key, tmp_path / "absent.key")
    text = tmp_path / "text.key"
    text.write_text("no key")
    assert "text.key: cannot be read" in refusal_of(FedShiftError, Key, text)
    for name, key in (("ed", ed25519.Ed25519PrivateKey.generate()), ("p256", ec.generate_private_key(ec.SECP256R1()))):
        path = tmp_path / f"{name}.key"
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH,
                                           serialization.NoEncryption()))  # fmt: skip
        assert "it is no key on the curve P-384" in refusal_of(FedShiftError, Key, path)
