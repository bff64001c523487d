"""Certificates and keys: right names, file modes, nothing overwritten; what a SuperLink makes of them, and refuses."""

import contextlib
import datetime
import os
import shutil
import socket
import ssl
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve
from real_federation import opened
from refusals import refused
from support import InlineRun, Run
from typer.testing import CliRunner

from fedshift import cli
from fedshift.run.launch import credentials, processes, runner, superlink
from fedshift.run.launch.credentials import Credentials
from fedshift.site.deploy import demo as deploy_demo
from fedshift_core.errors import ConfigError, FedShiftError

DAY = datetime.timedelta(days=1)
HOSTS = ("localhost", "127.0.0.1", "superlink.example.org", "2001:db8::1")


@pytest.fixture
def made(tmp_path: Path) -> Credentials:
    """Return a CA and a certificate for this machine's loopback."""
    folder = tmp_path / "federation"
    credentials.make_authority(folder)
    credentials.make_server(folder, list(HOSTS))
    return Credentials(folder)


@pytest.fixture
def other(tmp_path: Path) -> Credentials:
    """Return another CA."""
    credentials.make_authority(tmp_path / "other")
    return Credentials(tmp_path / "other")


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


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


def test_a_client_takes_the_certificate_for_each_of_its_names_and_no_other(
    made: Credentials, other: Credentials
) -> None:
    for host in HOSTS:
        shake_hands(made, made.ca_certificate, host)
    for host in ("example.org", "127.0.0.2", "www.superlink.example.org"):
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            shake_hands(made, made.ca_certificate, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made, other.ca_certificate, "localhost")


def test_the_certificate_serves_for_its_days_and_cannot_sign(made: Credentials) -> None:
    server, authority = certificate(made.certificate), certificate(made.ca_certificate)
    server.verify_directly_issued_by(authority)
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert constraints.ca and constraints.path_length == 0
    made.certificate.unlink()
    made.key.unlink()
    credentials.make_server(made.folder, ["localhost"], days=30)
    left = certificate(made.certificate).not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert 29 * DAY < left <= 30 * DAY


@pytest.mark.parametrize("there", ["ca.key", "server.key", "server.crt", "a.key", "a.pub"])
def test_no_file_is_overwritten(made: Credentials, there: str) -> None:
    """One file of a pair that is there is enough: its partner would belong to another key."""
    folder = made.folder
    credentials.make_node(folder, "a")
    for path in folder.glob(f"{there.partition('.')[0]}.*"):
        if path.name not in (there, "ca.crt"):
            path.unlink()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with refused(ConfigError, there):
        if there.startswith("ca"):
            credentials.make_authority(folder)
        elif there.startswith("server"):
            credentials.make_server(folder, ["localhost"])
        else:
            credentials.make_node(folder, "a")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("host", ["", "https://superlink", "superlink:8000", "300.1.1.1", "-a", "*.example.org"])
def test_what_is_no_host_is_refused(host: str, other: Credentials) -> None:
    with refused(ConfigError, "neither a host name nor an IP address"):
        credentials.make_server(other.folder, [host])
    assert not other.key.exists()


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "a\n"])
def test_a_nodes_name_stays_in_the_folder(tmp_path: Path, name: str) -> None:
    with refused(ConfigError, "node name"):
        credentials.make_node(tmp_path, name)
    for hosts, named in ((["localhost"], "ca.crt"), ([], "--host")):
        with refused(ConfigError, named):
            credentials.make_server(tmp_path, hosts)
    assert not list(tmp_path.iterdir())


# --- what a SuperLink refuses to start with ------------------------------------------------------------------


def dated(path: Path, signer: Path, first: int, last: int) -> None:
    """Write a certificate anew, valid from so many days from now to so many."""
    old, now = certificate(path), datetime.datetime.now(datetime.UTC)
    key: Any = serialization.load_pem_private_key(signer.read_bytes(), None)
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), x509.random_serial_number(), now + first * DAY, now + last * DAY,
        list(old.extensions),
    )  # fmt: skip
    path.write_bytes(builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))


def signed_itself(made: Credentials, _: Credentials) -> None:
    key = ec.generate_private_key(credentials.CURVE)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "self")])
    made.certificate.write_bytes(credentials._certificate(name, name, key, key, 9))


#: What is done to credentials and another CA; the file that is named, what is said of it, and the remedy.
BROKEN: list[tuple[Callable[[Credentials, Credentials], object], str, str, str]] = [
    (lambda made, _: dated(made.certificate, made.ca_key, -9, -1), "server.crt", "expired on", "rm "),
    (lambda made, _: dated(made.certificate, made.ca_key, 1, 9), "server.crt", "is not valid", "rm "),
    (lambda made, _: dated(made.ca_certificate, made.ca_key, -9, -1), "ca.crt", "expired on",
     "fedshift credentials authority"),
    (lambda made, other: shutil.copy(other.ca_certificate, made.ca_certificate), "server.crt", "is not signed by",
     "rm "),
    (signed_itself, "server.crt", "is not signed by", "--host NAME"),  # it holds none
    (lambda made, other: shutil.copy(other.ca_key, made.key), "server.key", "is not the key of", "rm "),
    *[(lambda made, _, name=name: (made.folder / name).write_text("nonsense"), name, "cannot read", "")
      for name in ("server.key", "server.crt")],
    (lambda made, _: made.key.unlink(), "server.key", "is missing", ""),
    *[(lambda made, _, name=name, mode=mode: (made.folder / name).chmod(int(mode, 8)), name, mode, "chmod 600")
      for name, mode in (("server.key", "0640"), ("server.key", "0601"), ("ca.key", "0604"))],
]  # fmt: skip


@pytest.mark.parametrize(("broken", "file", "said", "remedy"), BROKEN)
def test_what_a_superlink_refuses_to_start_with(
    broken: Any, file: str, said: str, remedy: str, made: Credentials, other: Credentials, started: list[Any]
) -> None:
    """Nothing is started; the message names the file and the remedy, which for a certificate are its names."""
    assert made.superlink_options()[-1] == "--enable-supernode-auth"
    broken(made, other)
    ended = CliRunner().invoke(cli.app, ["superlink", "--credentials", str(made.folder)])
    text = str(ended.exception)
    assert isinstance(ended.exception, ConfigError) and not started
    assert all(part in text for part in (str(made.folder / file), said, remedy)) and text.count("\n") <= 1
    if remedy == "rm ":
        assert text.endswith(" --host NAME")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what was to be started as a SuperLink: its options, and the guard."""
    these: list[Any] = []
    monkeypatch.setattr(superlink, "serve", lambda *given: these.append(given))
    return these


def test_an_expired_authority_or_a_key_that_is_not_its_own_signs_nothing(made: Credentials, other: Credentials) -> None:
    made.certificate.unlink()
    made.key.unlink()
    good = made.ca_key.read_bytes()
    steps: list[tuple[Callable[[], object], str]] = [
        (lambda: made.ca_key.chmod(0o644), r"ca\.key can be read by others"),
        (lambda: (made.ca_key.chmod(0o600), made.ca_key.write_bytes(other.ca_key.read_bytes())),
         r"ca\.key is not the key of .*ca\.crt"),
        (lambda: (made.ca_key.write_bytes(good), dated(made.ca_certificate, made.ca_key, -9, -1)),
         r"ca\.crt expired on "),
    ]  # fmt: skip
    for step, named in steps:
        step()
        with pytest.raises(ConfigError, match=named):
            credentials.make_server(made.folder, ["localhost"])


def test_a_key_of_another_user(made: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    real, user = Path.stat, made.key.stat().st_uid

    def stat_of(path: Path, **more: bool) -> os.stat_result:
        mine = real(path, **more)
        return os.stat_result((*mine[:4], user + 5, *mine[5:])) if path == made.key else mine

    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(Path, "stat", stat_of)
    with pytest.raises(ConfigError, match=rf"user {user + 5}.*\n.*chown {user} {made.key}$"):
        made.superlink_options()


# --- the commands -------------------------------------------------------------------------------------------


def call(*arguments: str) -> str:
    """Run a command and return what it prints; its mistakes are raised."""
    ended = CliRunner().invoke(cli.app, arguments)
    if isinstance(ended.exception, FedShiftError):
        raise ended.exception
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_the_commands_write_what_the_superlink_reads(here: Path) -> None:
    call("credentials", "authority", "federation")
    call("credentials", "server", "federation", "--host", "superlink", "--host", "10.0.0.1", "--days", "10")
    folder, key = here / "federation", here / "keys" / "scan"
    assert call("credentials", "node", "keys", "scan") == f"wrote {key}.key\nwrote {key}.pub\n"
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "ca.key", "server.crt", "server.key"]
    assert str(folder / "server.crt") in Credentials(folder).superlink_options()


def test_a_superlink_is_secure_or_says_that_it_is_not(
    made: Credentials, started: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for wrong in ([], ["--insecure", "--credentials", str(made.folder)]):
        with refused(ConfigError, "--credentials DIR", "--insecure"):
            call("superlink", *wrong)
    assert not started
    call("superlink", "--credentials", str(made.folder), "--port", "9000", "--database", "state.db")
    call("superlink", "--insecure", "--any-user")
    address = ["--host", "0.0.0.0", "--port"]
    assert started == [
        ([*made.superlink_options(), *address, "9000", "--database", "state.db"], superlink.OnlyFleet),
        (["--insecure", *address, "8000"], superlink.AnyUser),
    ]
    requests: list[bool] = []  # so is the demo
    monkeypatch.setattr("fedshift_app.run.status.exit_if_degraded", lambda folder: None)
    monkeypatch.setattr(deploy_demo, "demo", lambda flat, *, secure: requests.append(secure) or tmp_path)
    call("deploy-demo", "rounds=1")
    call("deploy-demo", "--insecure", "rounds=1")
    assert requests == [True, False]


def test_flower_takes_a_nodes_key_pair_and_private_keys_are_their_owners_alone(made: Credentials) -> None:
    private_file, public_file = credentials.make_node(made.folder / "keys", "photo-1")
    assert (private_file.name, public_file.name) == ("photo-1.key", "photo-1.pub")
    private = load_ssh_private_key(private_file.read_bytes(), None)
    public = load_ssh_public_key(public_file.read_bytes())
    assert private.public_key() == public and uses_nist_ec_curve(public)
    assert public_file.read_text().endswith(" photo-1\n")
    for mode, *paths in (
        (0o600, made.ca_key, made.key, private_file), (0o644, made.ca_certificate, made.certificate, public_file),
        (0o700, made.folder, private_file.parent),
    ):  # fmt: skip
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {mode}


# --- a real federation --------------------------------------------------------------------------------------


#: Two nodes of 18 images.
TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"
ROUNDS = 2
LIMIT = 120
JOINED = "SuperNode ID:"


@pytest.mark.slow
@pytest.mark.long
def test_strangers_are_refused_and_the_run_is_unharmed(run_inline: InlineRun, tmp_path: Path) -> None:
    """Same weights as a run in one process that nobody disturbed."""
    credentials.make_authority(tmp_path / "other")
    unknown, _ = credentials.make_node(tmp_path / "keys", "unknown")
    home = tmp_path / "site"
    own = home / "keys" / "node-0-scan.key"
    with opened(home, 2, TINY) as site:
        key, root = "--auth-supernode-private-key", "--root-certificates"
        ca, other = (str(each.ca_certificate) for each in (site.link.credentials, Credentials(tmp_path / "other")))
        node_config = f'domain="scan" data-dir="{home / "nodes" / "node-0-scan"}" partition-id=0'
        strangers = []
        for security, refusal in (
            ([root, ca], "All SuperNodes must be registered"),
            ([root, ca, key, str(unknown)], "Failed to activate SuperNode"),
            ([key, str(own)], "CERTIFICATE_VERIFY_FAILED"),
            ([root, other], "CERTIFICATE_VERIFY_FAILED"),
            (["--insecure", "--max-retries", "1"], "Failed to initialize the connection"),
        ):
            name = f"stranger-{len(strangers)}"
            command = [processes.command("flower-supernode"), "--superlink", site.link.address, *security]
            more = ["--port", str(processes.free_port()), "--node-config", node_config]
            strangers.append((name, site.flower.start(name, [*command, *more]), refusal))
        flat = {"experiment": "handwritten", "rounds": ROUNDS, "output-dir": str(tmp_path / "runs")}
        run = Run(runner.submit(site.flower, home, flat | {"set": f"{TINY} federation.min_nodes=2"}, []))
        for name, process, refusal in strangers:
            assert process.wait(timeout=LIMIT) != 0
            log = " ".join(site.flower.log(name).read_text(errors="replace").split())
            assert refusal in log and JOINED not in log, name
    assert run.results["engine"] == "deployment"
    undisturbed = run_inline(f"nodes=2 rounds={ROUNDS} {TINY}")
    assert run.results["weights_sha256"] == undisturbed.results["weights_sha256"]
