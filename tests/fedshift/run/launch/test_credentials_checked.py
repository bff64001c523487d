"""What `fedshift superlink` refuses to start with: certificates that clients refuse, keys that others can read."""

import datetime
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from fedshift import cli
from fedshift.run.launch import credentials, superlink
from fedshift.run.launch.credentials import Credentials
from fedshift_core.errors import ConfigError

DAY = datetime.timedelta(days=1)


@pytest.fixture
def made(tmp_path: Path) -> Credentials:
    folder = tmp_path / "federation"
    credentials.make_authority(folder)
    credentials.make_server(folder, ["localhost", "127.0.0.1"])
    return Credentials(folder)


def dated(certificate: Path, signer: Path, first: int, last: int) -> None:
    """Write a certificate anew, valid from so many days from now to so many."""
    old = x509.load_pem_x509_certificate(certificate.read_bytes())
    key = serialization.load_pem_private_key(signer.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), x509.random_serial_number(), now + first * DAY, now + last * DAY,
        list(old.extensions),
    )  # fmt: skip
    certificate.write_bytes(builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))


def refusal(made: Credentials) -> str:
    with pytest.raises(ConfigError) as caught:
        made.superlink_options()
    assert str(caught.value).count("\n") <= 1  # a command that mends it has a line of its own
    return str(caught.value)


def anew(made: Credentials) -> str:
    return (
        f"run: rm {made.certificate} {made.key}; "
        f"fedshift credentials server {made.folder} --host localhost --host 127.0.0.1"
    )


@pytest.mark.parametrize(("first", "last", "reason"), [(-9, -1, "expired on "), (1, 9, "is not valid before ")])
def test_a_certificate_that_is_not_valid_now(made: Credentials, first: int, last: int, reason: str) -> None:
    dated(made.certificate, made.ca_key, first, last)
    message = refusal(made)
    assert message.startswith(f"{made.certificate} {reason}")
    assert message.endswith(anew(made))


def test_the_remedy_mends_it(made: Credentials) -> None:
    dated(made.certificate, made.ca_key, -9, -1)
    words = refusal(made).partition("; fedshift ")[2].split()
    made.certificate.unlink()
    made.key.unlink()
    assert CliRunner().invoke(cli.app, words).exit_code == 0
    assert "--enable-supernode-auth" in made.superlink_options()


def test_an_authority_that_expired(made: Credentials) -> None:
    dated(made.ca_certificate, made.ca_key, -9, -1)
    message = refusal(made)
    assert message.startswith(f"{made.ca_certificate} expired on ")
    assert "`fedshift credentials authority`" in message
    made.certificate.unlink()
    made.key.unlink()
    with pytest.raises(ConfigError, match=r"ca\.crt expired on "):  # nor does it sign
        credentials.make_server(made.folder, ["localhost"])


def test_a_certificate_of_another_authority(made: Credentials, tmp_path: Path) -> None:
    credentials.make_authority(tmp_path / "other")
    made.ca_certificate.write_bytes(Credentials(tmp_path / "other").ca_certificate.read_bytes())
    assert refusal(made) == f"{made.certificate} is not signed by {made.ca_certificate}\n{anew(made)}"


def test_a_certificate_that_signed_itself(made: Credentials) -> None:
    key = ec.generate_private_key(credentials.CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "self")])
    made.certificate.write_bytes(credentials._certificate(name, name, key, key, 9))
    message = refusal(made)
    assert f"is not signed by {made.ca_certificate}" in message
    assert message.endswith("--host NAME")  # it holds none


def test_a_key_of_another_certificate(made: Credentials) -> None:
    made.key.write_bytes(credentials._pem(ec.generate_private_key(credentials.CURVE)))
    assert refusal(made) == f"{made.key} is not the key of {made.certificate}\n{anew(made)}"


@pytest.mark.parametrize("name", ["server.key", "server.crt", "ca.crt"])
def test_what_is_no_certificate_and_no_key(made: Credentials, name: str) -> None:
    (made.folder / name).write_text("nonsense")
    assert refusal(made).startswith(f"cannot read {made.folder / name}: ")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
@pytest.mark.parametrize("name", ["server.key", "ca.key"])
def test_a_key_that_others_can_read(made: Credentials, name: str, mode: int) -> None:
    path = made.folder / name
    path.chmod(mode)
    message = refusal(made)
    assert message.startswith(f"{path} can be read by others: its mode is {mode:04o}")
    assert message.endswith(f"\nrun: chmod 600 {path}")
    path.chmod(0o600)
    assert made.superlink_options()


def test_a_ca_key_that_others_can_read_signs_nothing(made: Credentials) -> None:
    made.certificate.unlink()
    made.key.unlink()
    made.ca_key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"ca\.key can be read by others"):
        credentials.make_server(made.folder, ["localhost"])


def test_a_key_of_another_user(made: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    result = made.key.stat()

    def stat_of(path: Path, **more: bool) -> os.stat_result:
        mine = real(path, **more)
        return os.stat_result((*mine[:4], result.st_uid + 5, *mine[5:])) if path == made.key else mine

    real = Path.stat
    monkeypatch.setattr(os, "geteuid", lambda: result.st_uid)
    monkeypatch.setattr(Path, "stat", stat_of)
    message = refusal(made)
    assert message.startswith(f"{made.key} belongs to user {result.st_uid + 5}, this is user {result.st_uid}\n")
    assert message.endswith(f"run: chown {result.st_uid} {made.key}")
    assert stat.S_IMODE(real(made.key).st_mode) == 0o600


@pytest.mark.parametrize(("days", "warns"), [(29, True), (31, False)])
def test_a_certificate_that_expires_soon_is_reported(
    made: Credentials, days: int, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(credentials.log, "warning", lambda text, *given: said.append(text % given))
    dated(made.certificate, made.ca_key, -1, days)
    assert made.superlink_options()
    assert said == ([f"{made.certificate} expires in 28 days; {anew(made)}"] if warns else [])


def test_the_command_starts_nothing_with_what_is_refused(made: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(superlink, "serve", started.append)
    made.key.chmod(0o644)
    ended = CliRunner().invoke(cli.app, ["superlink", "--credentials", str(made.folder)])
    assert isinstance(ended.exception, ConfigError)
    assert not started
