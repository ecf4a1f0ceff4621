"""Who is who: the server's certificate for its sites, and each site's key pair for the server.

The server makes a certificate authority of its own, whose certificate is the one file a site needs to be sure of the
server. A site makes a key pair and hands out the public half; it is Flower's registry of nodes that knows them.
"""

import ipaddress
import re
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..errors import ConfigError, FederationError
from ..files import publish_bytes, write_private

CURVE = ec.SECP384R1()
HERE = "127.0.0.1"
VALID = timedelta(days=825)
SECRET = 32  # bytes
NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")  # of a machine


@dataclass(frozen=True)
class Certificates:
    """Files of the server: `ca` is for everybody, `key` for nobody."""

    ca: Path
    certificate: Path
    key: Path


def server_certificates(folder: Path, addresses: Iterable[str]) -> Certificates:
    """The certificates of this machine's server, in this folder; see `issue_certificates`."""
    given = set(addresses)
    check_addresses(given, "--address")
    return issue_certificates(folder, given | own_addresses())


def issue_certificates(folder: Path, wanted: set[str]) -> Certificates:
    """The certificates of this folder; made if there are none, renewed if an address is new or the end is near."""
    files = folder_certificates(folder)
    ca_key = folder / "ca.key"
    if not files.ca.exists() or not ca_key.exists():
        _write_authority(files.ca, ca_key)
    if not files.key.exists() or not _covers(files.certificate, wanted):
        _write_server(files, ca_key, wanted)
    return files


def check_addresses(addresses: Iterable[str], where: str) -> None:
    """Find a mistake before anything is written, and blame it on where it stands."""
    for address in addresses:
        try:
            _address(address)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error


def folder_certificates(folder: Path) -> Certificates:
    """Where the certificates of a server's folder are."""
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")


def certificate_end(file: Path) -> datetime:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise FederationError(f"{file}: is no certificate: {error}") from error


def refuse_ended(files: Certificates, what_to_do: str) -> None:
    """A server whose certificate, or whose authority's, has ended could not even reach itself."""
    for file in (files.ca, files.certificate):
        end = certificate_end(file)
        if end < datetime.now(UTC):
            raise FederationError(f"{file}: has ended on {end:%Y-%m-%d}, no site believes it any more; {what_to_do}")


def renew_authority(folder: Path) -> None:
    """The same authority for longer: what it has signed holds, and the old file is good until its own end."""
    key = _authority_key(folder / "ca.key")
    publish_bytes(folder / "ca.pem", _authority_certificate(key))


def given_certificates(ca: Path, certificate: Path, key: Path, reached_by: str = HERE) -> Certificates:
    """The operator's own files instead of ours, for a server that reaches itself by this address."""
    missing = [file for file in (ca, certificate, key) if not file.is_file()]
    if missing:
        raise FederationError(f"{missing[0]}: there is no such certificate or key")
    try:
        is_right = _covers(certificate, {reached_by})
    except (ValueError, x509.ExtensionNotFound) as error:
        raise FederationError(f"{certificate}: is no certificate of a server: {error}") from error
    if not is_right:
        raise FederationError(
            f"{certificate}: must be valid for a month at least and be made out also to {reached_by}, "
            "by which the server reaches itself"
        )
    return Certificates(ca, certificate, key)


def own_addresses() -> set[str]:
    """What this machine is called, as far as it knows and a certificate can say."""
    names = {name for name in (socket.gethostname(), socket.getfqdn()) if NAME.fullmatch(name)}
    return {"localhost", HERE, "::1"} | names


def _write_authority(certificate: Path, key_file: Path) -> None:
    key = ec.generate_private_key(CURVE)
    write_private(key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    publish_bytes(certificate, _authority_certificate(key))


def _authority_certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    name = _name("fedcopl federation")
    made = (
        _builder(name, name, key.public_key(), 4 * VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(Encoding.PEM)


def _authority_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{file}: is no private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{file}: is not a key that fedcopl made; name your own files instead")
    return key


def _write_server(files: Certificates, ca_key: Path, addresses: set[str]) -> None:
    authority = x509.load_pem_x509_certificate(files.ca.read_bytes())
    authority_key = _authority_key(ca_key)
    key = ec.generate_private_key(CURVE)
    made = (
        _builder(authority.subject, _name("fedcopl server"), key.public_key(), VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(sorted(map(_address, addresses), key=str)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    write_private(files.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    publish_bytes(files.certificate, made.public_bytes(Encoding.PEM))


def _covers(certificate: Path, addresses: set[str]) -> bool:
    if not certificate.exists():
        return False
    made = x509.load_pem_x509_certificate(certificate.read_bytes())
    named = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    soon = datetime.now(UTC) + timedelta(days=30)
    return made.not_valid_after_utc > soon and all(_address(address) in named for address in addresses)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    # Clocks differ: a site whose clock is a little slow must not find the certificate unborn.
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + valid)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _address(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        name = text.encode("idna").decode()  # names with other than English letters, as networks spell them
    except UnicodeError:
        name = ""
    if not NAME.fullmatch(name):
        raise ValueError(f"{text!r} is no name or number of a machine; write it as server.example, no port")
    return x509.DNSName(name)


def site_key(folder: Path, name: str) -> tuple[Path, Path]:
    """This site's private key and the public one to hand over; made when the site joins for the first time."""
    private, public = folder / "site.key", folder / "site.pub"
    if not private.exists():
        write_private(private, new_site_key())
    publish_bytes(public, public_line(private, name))
    return private, public


def private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """The key of a site."""
    key = load_ssh_private_key(file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{file}: is not the key of a site")
    return key


def new_site_key() -> bytes:
    return ec.generate_private_key(CURVE).private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def site_secret(folder: Path) -> bytes:
    """This site's own random bytes: where it adds noise, the noise is drawn from them. Made when it first joins."""
    file = folder / "site.secret"
    if not file.exists():
        write_private(file, secrets.token_bytes(SECRET))
    try:
        secret = file.read_bytes()
    except OSError as error:
        raise FederationError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(secret) != SECRET:  # whoever can guess it can take the noise off
        raise FederationError(
            f"{file}: holds {len(secret)} bytes instead of {SECRET}, so that noise drawn from it would hide nothing; "
            "put the old file back, or remove this one: a new one is made, with which to join the next run"
        )
    return secret


def public_line(private: Path, name: str) -> bytes:
    """As OpenSSH writes it: the kind of key, the key, and whose it is."""
    try:
        return public_half(private.read_bytes(), name)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{private}: is no private key: {error}") from error


def public_half(private: bytes, name: str) -> bytes:
    """The line of `site.pub` that belongs to the content of a `site.key`."""
    key = load_ssh_private_key(private, None)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return line + b" " + name.encode() + b"\n"


@dataclass(frozen=True)
class SiteKey:
    """A site that may join: its name, and its public key as Flower's registry takes it."""

    name: str
    public: bytes


def key_digest(key: SiteKey) -> str:
    """Stands for a key in lists and in talk."""
    return sha256(key.public).hexdigest()[:16]


def read_site_keys(folder: Path) -> dict[str, SiteKey]:
    """Every `*.pub` of a folder: who may join, by name."""
    keys = [read_site_key(file) for file in sorted(folder.glob("*.pub"))]
    found: dict[str, SiteKey] = {}
    for key in keys:
        if key.name in found:
            raise FederationError(f"{folder}: two keys are of a site called {key.name!r}; one must change its name")
        found[key.name] = key
    twice = {key.public for key in keys if sum(key.public == other.public for other in keys) > 1}
    if twice:
        same = " and ".join(key.name for key in keys if key.public in twice)
        raise FederationError(f"{folder}: {same} have the same key; each site makes its own")
    return found


def read_site_key(file: Path) -> SiteKey:
    try:
        line = file.read_bytes()
        key = load_ssh_public_key(line)
        name = line.split(maxsplit=2)[2].decode().strip()
    except (OSError, ValueError, IndexError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{file}: is not the public key of a site (site.pub): {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not name.isprintable() or not name:
        raise FederationError(f"{file}: is not the public key of a site (site.pub)")
    return SiteKey(name, key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
