"""Certificates and keys: right names, file modes, nothing overwritten; and what a SuperLink makes of them."""

import contextlib
import datetime
import ipaddress
import socket
import ssl
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedshift import cli
from fedshift.run.launch import credentials, superlink
from fedshift.run.launch.credentials import Credentials
from fedshift.site.deploy import demo as deploy_demo
from fedshift_core.errors import ConfigError, FedShiftError


@pytest.fixture
def made(tmp_path: Path) -> Credentials:
    """Return a CA and a certificate for this machine's loopback."""
    folder = tmp_path / "federation"
    credentials.make_authority(folder)
    credentials.make_server(folder, ["localhost", "127.0.0.1", "superlink.example.org", "2001:db8::1"])
    return Credentials(folder)


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def shake_hands(served: Credentials, trusted: Path, host: str) -> None:
    """Connect over TLS on loopback, as ``host``, trusting one CA; raises the error that the client gets."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(served.certificate, served.key)
    client = ssl.create_default_context(cafile=trusted)
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    near, far = socket.socketpair()

    def answer() -> None:
        with far, contextlib.suppress(OSError):  # what went wrong, the client says
            server.wrap_socket(far, server_side=True).close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with near:
            client.wrap_socket(near, server_hostname=host).close()
    finally:
        thread.join()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "superlink.example.org", "2001:db8::1"])
def test_a_client_with_the_ca_takes_the_certificate_for_each_of_its_names(made: Credentials, host: str) -> None:
    shake_hands(made, made.ca_certificate, host)


@pytest.mark.parametrize("host", ["example.org", "127.0.0.2", "www.superlink.example.org"])
def test_another_name_is_refused(made: Credentials, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(made, made.ca_certificate, host)


def test_another_ca_is_refused(made: Credentials, tmp_path: Path) -> None:
    credentials.make_authority(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made, Credentials(tmp_path / "other").ca_certificate, "localhost")


def test_the_certificate_holds_the_given_names_and_no_other(made: Credentials) -> None:
    names = certificate(made.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "superlink.example.org"]
    assert set(names.get_values_for_type(x509.IPAddress)) == {
        ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("2001:db8::1"),
    }  # fmt: skip


def test_the_certificate_serves_and_cannot_sign(made: Credentials) -> None:
    server, authority = certificate(made.certificate), certificate(made.ca_certificate)
    server.verify_directly_issued_by(authority)
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert constraints.ca and constraints.path_length == 0


def test_days_limit_the_certificate(tmp_path: Path) -> None:
    credentials.make_authority(tmp_path)
    credentials.make_server(tmp_path, ["localhost"], days=30)
    left = certificate(tmp_path / "server.crt").not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=29) < left <= datetime.timedelta(days=30)


def test_flower_takes_a_nodes_key_pair(tmp_path: Path) -> None:
    private_file, public_file = credentials.make_node(tmp_path, "photo-1")
    assert (private_file.name, public_file.name) == ("photo-1.key", "photo-1.pub")
    private = load_ssh_private_key(private_file.read_bytes(), None)
    public = load_ssh_public_key(public_file.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert private.public_key() == public
    assert uses_nist_ec_curve(public)
    assert public_file.read_text().endswith(" photo-1\n")


def test_private_keys_are_their_owners_alone(made: Credentials, tmp_path: Path) -> None:
    private, public = credentials.make_node(tmp_path / "keys", "a")
    assert {mode(made.ca_key), mode(made.key), mode(private)} == {0o600}
    assert {mode(made.ca_certificate), mode(made.certificate), mode(public)} == {0o644}
    assert {mode(made.folder), mode(private.parent)} == {0o700}


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("ca.key", lambda folder: credentials.make_authority(folder)),
        ("ca.crt", lambda folder: credentials.make_authority(folder)),
        ("server.key", lambda folder: credentials.make_server(folder, ["localhost"])),
        ("server.crt", lambda folder: credentials.make_server(folder, ["localhost"])),
        ("a.key", lambda folder: credentials.make_node(folder, "a")),
        ("a.pub", lambda folder: credentials.make_node(folder, "a")),
    ],
)
def test_no_file_is_overwritten(made: Credentials, name: str, again: Callable[[Path], object]) -> None:
    """One file of a pair that is there is enough: its partner would belong to another key."""
    credentials.make_node(made.folder, "a")
    partner = {"ca.key": "ca.crt", "ca.crt": "ca.key", "server.key": "server.crt", "server.crt": "server.key"}
    other = made.folder / partner.get(name, "a.pub" if name == "a.key" else "a.key")
    if not name.startswith("ca."):
        other.unlink()
    before = {path: path.read_bytes() for path in made.folder.iterdir()}
    with pytest.raises(ConfigError, match=rf"{name if not name.startswith('ca.') else 'ca.key'} exists already"):
        again(made.folder)
    assert {path: path.read_bytes() for path in made.folder.iterdir()} == before


@pytest.mark.parametrize(
    "host", ["", "https://superlink", "superlink:8000", "300.1.1.1", "a..b", "-a", "*.example.org"]
)
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    credentials.make_authority(tmp_path)
    with pytest.raises(ConfigError, match="neither a host name nor an IP address"):
        credentials.make_server(tmp_path, [host])
    assert not (tmp_path / "server.key").exists()


def test_a_server_needs_a_name_and_its_ca(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--host is missing"):
        credentials.make_server(tmp_path, [])
    with pytest.raises(ConfigError, match=r"ca\.crt is missing; `fedshift credentials authority"):
        credentials.make_server(tmp_path, ["localhost"])


def test_a_ca_key_of_another_ca_is_refused(made: Credentials, tmp_path: Path) -> None:
    credentials.make_authority(tmp_path / "other")
    made.ca_key.write_bytes(Credentials(tmp_path / "other").ca_key.read_bytes())
    made.key.unlink()
    made.certificate.unlink()
    with pytest.raises(ConfigError, match=r"ca\.key is not the key of .*ca\.crt"):
        credentials.make_server(made.folder, ["localhost"])


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "a\n"])
def test_a_nodes_name_stays_in_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="node name"):
        credentials.make_node(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_the_superlink_gets_all_three_files_and_asks_for_keys(made: Credentials) -> None:
    options = made.superlink_options()
    assert options[-1] == "--enable-supernode-auth"
    assert "--insecure" not in options
    made.key.unlink()
    with pytest.raises(ConfigError, match=r"server\.key is missing"):
        made.superlink_options()


@given(st.ip_addresses())
def test_every_ip_address_is_written_as_one(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        return
    assert credentials._general_name(str(address)) == x509.IPAddress(address)


@pytest.fixture
def refusal_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Run a command in an empty folder and return what it prints; its mistakes are raised."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> str:
        ended = CliRunner().invoke(cli.app, arguments)
        if isinstance(ended.exception, FedShiftError):
            raise ended.exception
        assert ended.exit_code == 0, ended.output
        return ended.output

    return call


def test_the_commands_write_what_the_superlink_reads(refusal_for: Callable[..., str], tmp_path: Path) -> None:
    refusal_for("credentials", "authority", "federation")
    refusal_for("credentials", "server", "federation", "--host", "superlink", "--host", "10.0.0.1", "--days", "10")
    folder = tmp_path / "federation"
    assert refusal_for("credentials", "node", "keys", "scan") == (
        f"wrote {tmp_path / 'keys' / 'scan.key'}\nwrote {tmp_path / 'keys' / 'scan.pub'}\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "ca.key", "server.crt", "server.key"]
    assert str(folder / "server.crt") in Credentials(folder).superlink_options()


def test_a_superlink_is_secure_or_says_that_it_is_not(
    refusal_for: Callable[..., str], made: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    guards: list[type[superlink.Guard]] = []

    def serve(options: list[str], guard: type[superlink.Guard]) -> None:
        started.append(options)
        guards.append(guard)

    monkeypatch.setattr(superlink, "serve", serve)
    for wrong in ([], ["--insecure", "--credentials", str(made.folder)]):
        with pytest.raises(ConfigError, match=r"either --credentials DIR.* or --insecure"):
            refusal_for("superlink", *wrong)
    assert not started
    refusal_for("superlink", "--credentials", str(made.folder), "--port", "9000", "--database", "state.db")
    refusal_for("superlink", "--insecure", "--any-user")
    assert guards == [superlink.OnlyFleet, superlink.AnyUser]
    assert started == [
        [*made.superlink_options(), "--host", "0.0.0.0", "--port", "9000", "--database", "state.db"],
        ["--insecure", "--host", "0.0.0.0", "--port", "8000"],
    ]


def test_the_demo_is_secure_unless_asked_otherwise(
    refusal_for: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests: list[bool] = []

    def demo(flat: dict[str, Any], *, secure: bool) -> Path:
        requests.append(secure)
        return tmp_path

    monkeypatch.setattr("fedshift_app.run.status.exit_if_degraded", lambda folder: None)

    monkeypatch.setattr(deploy_demo, "demo", demo)
    refusal_for("deploy-demo", "rounds=1")
    refusal_for("deploy-demo", "--insecure", "rounds=1")
    assert requests == [True, False]
