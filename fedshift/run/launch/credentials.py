"""Certificates and keys of a deployment: a CA, the SuperLink's certificate, one key pair per SuperNode.

TLS shows a SuperNode (or ``flwr run``) that it talks to the right SuperLink; the SuperNode's key shows the SuperLink
who is calling. All keys are ECDSA on P-384, which Flower takes. Private keys are readable by their owner only, in
folders that only the owner can enter, and no file is ever overwritten.
"""

import datetime
import ipaddress
import logging
import os
import re
import shlex
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.plural import plural

log = logging.getLogger("fedshift")

T = TypeVar("T")

AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
WARN = datetime.timedelta(days=30)  # before a certificate expires
DATE = "%Y-%m-%d %H:%M UTC"
AUTHORITY_ANEW = (
    "make a new CA in an empty folder with `fedshift credentials authority`, and give its ca.crt to all nodes"
)
CURVE = ec.SECP384R1()
CLOCK_SKEW = datetime.timedelta(minutes=5)  # a certificate is also valid on a machine whose clock is late
HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
MOST_NODE_NAME = 100  # letters
NODE_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_NODE_NAME - 1}}}")


class Credentials:
    """The folder of the SuperLink's files.

    Attributes:
        folder: Holds them; the SuperLink needs no ``ca_key``.
        ca_certificate: The CA certificate, which every SuperNode and every submitter of runs needs.
        ca_key: The CA key, which signs certificates; needed again only to renew one.
        certificate: The SuperLink's certificate.
        key: Its private key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca_certificate, self.ca_key = folder / "ca.crt", folder / "ca.key"
        self.certificate, self.key = folder / "server.crt", folder / "server.key"

    def superlink_options(self) -> list[str]:
        """Return the options of ``flower-superlink``: TLS for all its APIs, and only SuperNodes with a known key.

        Raises:
            ConfigError: If a file is missing, a key can be read by others, or the certificate is not valid now, not
                signed by the CA, or of another key; with the command that mends it.
        """
        _check_there("server", self.ca_certificate, self.certificate, self.key)
        check_private(self.key)
        if self.ca_key.exists():  # the SuperLink does not need the CA key, but the file exists
            check_private(self.ca_key)
        self._check_certificate()
        return [
            "--ssl-ca-certfile",
            str(self.ca_certificate),
            "--ssl-certfile",
            str(self.certificate),
            "--ssl-keyfile",
            str(self.key),
            "--enable-supernode-auth",
        ]

    def _check_certificate(self) -> None:
        """Refuse a certificate that clients would refuse."""
        rm = shlex.join(["rm", str(self.certificate), str(self.key)])
        anew = f"{rm}; {shlex.join(['fedshift', 'credentials', 'server', str(self.folder), '--host', 'NAME'])}"
        authority = _valid(self.ca_certificate, AUTHORITY_ANEW)
        certificate, key = _valid(self.certificate, anew), _read(self.key, _load_key)
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            raise ConfigError(f"{self.certificate} is not signed by {self.ca_certificate}", anew) from None
        if key.public_key() != certificate.public_key():
            raise ConfigError(f"{self.key} is not the key of {self.certificate}", anew)


def check_private(path: Path) -> None:
    """Refuse a private key that another user of this machine can read.

    Raises:
        ConfigError: With the command that mends it.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    quoted = shlex.quote(str(path))
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path} belongs to user {status.st_uid}, this is user {os.geteuid()}",
            f"run: chown {os.geteuid()} {quoted}",
        )
    if status.st_mode & 0o077:
        raise ConfigError(
            f"{path} can be read by others: its mode is {stat.S_IMODE(status.st_mode):04o}, allowed is 0600 at most; "
            "make a new one if others may have read it",
            f"run: chmod 600 {quoted}",
        )


def _load_key(content: bytes) -> PrivateKeyTypes:
    return serialization.load_pem_private_key(content, password=None)


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a private key that only its owner can read, such as ``server.key``.

    Raises:
        ConfigError: If others can read it, or it is no key on an elliptic curve.
    """
    check_private(path)
    key = _read(path, _load_key)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is no key on an elliptic curve, as a server.key is")
    return key


def _read(path: Path, load: Callable[[bytes], T]) -> T:
    try:
        return load(path.read_bytes())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def _valid(path: Path, anew: str) -> x509.Certificate:
    """Return a certificate that is valid now; warn of one that expires soon."""
    certificate, now = _read(path, x509.load_pem_x509_certificate), datetime.datetime.now(datetime.UTC)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        raise ConfigError(
            f"{path} is not valid before {start:{DATE}}, but this machine's clock shows {now:{DATE}}", anew
        )
    if now > end:
        raise ConfigError(f"{path} expired on {end:{DATE}}", anew)
    if (left := end - now) < WARN:
        log.warning("%s expires in %s; %s", path, plural(left.days, "day"), anew)
    return certificate


def _check_there(command: str, *files: Path) -> None:
    """Refuse missing files, which this command of ``fedshift credentials`` makes."""
    for path in files:
        if not path.is_file():
            raise ConfigError(f"{path} is missing; `fedshift credentials {command}` makes it")


def make_authority(folder: Path) -> list[Path]:
    """Make the CA of a federation: ``ca.key`` and ``ca.crt``, valid for ten years.

    Raises:
        ConfigError: If a file exists already or cannot be written.
    """
    made = Credentials(folder)
    key = ec.generate_private_key(CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedShift federation CA")])
    signed = _certificate(name, name, key, key, AUTHORITY_DAYS)
    return _write({made.ca_key: _pem(key), made.ca_certificate: signed})


def make_server(folder: Path, hosts: list[str], days: int = SERVER_DAYS) -> list[Path]:
    """Make the SuperLink's certificate, signed by the CA of ``folder``: ``server.key`` and ``server.crt``.

    Args:
        folder: The folder of :func:`make_authority`.
        hosts: Every name and IP address under which the SuperLink is called. Nothing is added to them.
        days: How long the certificate is valid.

    Raises:
        ConfigError: If a host is neither a name nor an address, the CA is missing, or a file exists or cannot be
            written.
    """
    if not hosts:
        raise ConfigError("--host is missing: give each host name and IP address of the SuperLink")
    names = [_general_name(host) for host in hosts]
    made = Credentials(folder)
    authority, ca_key = _load_authority(made)
    key = ec.generate_private_key(CURVE)
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "FedShift SuperLink")])
    signed = _certificate(subject, authority.subject, key, ca_key, days, names)
    return _write({made.key: _pem(key), made.certificate: signed})


def make_node(folder: Path, name: str) -> list[Path]:
    """Make a SuperNode's key pair in OpenSSH's format: ``NAME.key``, which stays there, and ``NAME.pub``.

    Raises:
        ConfigError: If the name is not fit for a file, or a file exists already or cannot be written.
    """
    if not NODE_NAME.fullmatch(name):
        raise ConfigError(
            f"node name {as_found(name)}: at most {MOST_NODE_NAME} letters, digits, '.', '_' and '-' are allowed, "
            "a letter or digit first"
        )
    key = ec.generate_private_key(CURVE)
    private = _pem(key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return _write({folder / f"{name}.key": private, folder / f"{name}.pub": public + f" {name}\n".encode()})


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        labels = host.split(".")
    # Four numbers that are no address would pass for a name, and match nothing.
    if len(host) > 253 or not all(HOST_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise ConfigError(
            f"--host {as_found(host)} is neither a host name nor an IP address (without port or https://)"
        )
    return x509.DNSName(host)


def _load_authority(made: Credentials) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    _check_there(f"authority {made.folder}", made.ca_certificate, made.ca_key)
    key = private_key(made.ca_key)
    certificate = _valid(made.ca_certificate, AUTHORITY_ANEW)
    if key.public_key() != certificate.public_key():
        raise ConfigError(f"{made.ca_key} is not the key of {made.ca_certificate}")
    return certificate, key


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: Sequence[x509.GeneralName] = (),
) -> bytes:
    """Return a signed certificate in PEM: of a server with these hosts, without any of a CA."""
    now, is_ca = datetime.datetime.now(datetime.UTC), not hosts
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    usage |= {"digital_signature": not is_ca, "key_cert_sign": is_ca, "crl_sign": is_ca}
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _pem(
    key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(contents: dict[Path, bytes]) -> list[Path]:
    """Write new files: ``*.key`` with mode 0600, others 0644; a folder that is made gets mode 0700."""
    for path in contents:
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} exists already and is not overwritten: remove it, or choose another folder")
    for path, content in contents.items():
        mode = 0o600 if path.suffix == ".key" else 0o644
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The mode is set when the file comes into being: a key is at no moment readable by others.
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    return list(contents)
