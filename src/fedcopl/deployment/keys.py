"""Keys of sites, and TLS certificates of a server.

The site or the operator creates the key pair of a site; the server registers the public key. The server's certificate
is signed by its own certificate authority. A site verifies the server with the certificate of this authority, `ca.pem`.
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

_CURVE = ec.SECP384R1()
_SECRET = 32  # bytes
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_VALID = timedelta(days=825)  # of a server's certificate; its authority's is valid four times as long
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_UNUSED = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
_NO_USAGE = dict.fromkeys(_UNUSED.split(), False)  # usages for which no certificate is issued


@dataclass(frozen=True)
class SiteKey:
    """The name of a site, and its public key in the format of Flower's registry."""

    name: str
    public: bytes

    @property
    def digest(self) -> str:
        """Short digest that identifies the key."""
        return sha256(self.public).hexdigest()[:16]


def site_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the files of this site's private and public key; creates the key if there is none."""
    private, public = folder / "site.key", folder / "site.pub"
    if not private.exists():
        write_private(private, new_site_key())
    try:
        line = public_key_line(private.read_bytes(), name)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{private}: is not a private key: {error}") from error
    publish_bytes(public, line)
    return private, public


def private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Read the private key of a site."""
    key = load_ssh_private_key(file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{file}: is not an elliptic-curve key, as fedcopl makes for a site; restore site.key")
    return key


def new_site_key() -> bytes:
    """Create a private key in the format of OpenSSH."""
    return ec.generate_private_key(_CURVE).private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def public_key_line(private: bytes, name: str) -> bytes:
    """Return the line of `site.pub` (type, public key and name of the site) for the content of `site.key`."""
    key = load_ssh_private_key(private, None)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return line + b" " + name.encode() + b"\n"


def site_secret(folder: Path) -> bytes:
    """Return the seed of this site's noise; creates it if there is none."""
    file = folder / "site.secret"
    if not file.exists():
        write_private(file, secrets.token_bytes(_SECRET))
    try:
        secret = file.read_bytes()
    except OSError as error:
        raise FederationError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(secret) != _SECRET:  # noise from a seed that can be guessed can be removed
        raise FederationError(
            f"{file}: has {len(secret)} bytes instead of {_SECRET}, so that noise drawn from it would not be secret; "
            "restore the old file, or delete this one: a new one is made, for the next run"
        )
    return secret


def read_site_keys(folder: Path) -> dict[str, SiteKey]:
    """Read all `*.pub` files of a folder: site name -> key."""
    by_name: dict[str, SiteKey] = {}
    by_public: dict[bytes, str] = {}
    for key in map(read_site_key, sorted(folder.glob("*.pub"))):
        if key.name in by_name:
            raise FederationError(f"{folder}: two keys have the site name {key.name!r}; rename one of the sites")
        if key.public in by_public:
            names = f"{by_public[key.public]} and {key.name}"
            raise FederationError(f"{folder}: {names} have the same key; each site needs its own")
        by_name[key.name], by_public[key.public] = key, key.name
    return by_name


def read_site_key(file: Path) -> SiteKey:
    """Read the public key of a site, a file `site.pub`."""
    try:
        line = file.read_bytes()
        key = load_ssh_public_key(line)
        name = line.split(maxsplit=2)[2].decode().strip()
    except (OSError, ValueError, IndexError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{file}: is not the public key of a site (site.pub): {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not name.isprintable() or not name:
        raise FederationError(f"{file}: is not the public key of a site (site.pub)")
    return SiteKey(name, key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


@dataclass(frozen=True)
class Certificates:
    """Files of a server: `ca` is public, `key` is private."""

    ca: Path
    certificate: Path
    key: Path


def folder_certificates(folder: Path) -> Certificates:
    """Return the paths of the certificates in a server's folder."""
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")


def server_certificates(folder: Path, addresses: Iterable[str]) -> Certificates:
    """Issue certificates for these addresses and for the host names of this machine; see `issue_certificates`."""
    given = set(addresses)
    check_addresses(given, "--address")
    host_names = {name for name in (socket.gethostname(), socket.getfqdn()) if _HOST_NAME.fullmatch(name)}
    return issue_certificates(folder, given | host_names)


def issue_certificates(folder: Path, addresses: set[str]) -> Certificates:
    """Return the certificates in a folder; creates missing ones, and renews them for a new address or before expiry.

    They include the loopback addresses, by which the server connects to itself.
    """
    addresses = addresses | _LOOPBACK
    files, ca_key = folder_certificates(folder), folder / "ca.key"
    if not files.ca.exists() or not ca_key.exists():
        _write_key(ca_key, ec.generate_private_key(_CURVE))
        renew_authority(folder)
    if not files.key.exists() or not _covers(files.certificate, addresses):
        authority = x509.load_pem_x509_certificate(files.ca.read_bytes())
        key, authority_key = ec.generate_private_key(_CURVE), _read_authority_key(ca_key)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        names = x509.SubjectAlternativeName(sorted(map(_general_name, addresses), key=str))
        issued = (
            _certificate("fedcopl server", key, authority.subject, _VALID, is_authority=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(names, critical=False)
            .add_extension(issuer, critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        _write_key(files.key, key)
        publish_bytes(files.certificate, issued.public_bytes(Encoding.PEM))
    return files


def renew_authority(folder: Path) -> None:
    """Extend the authority's certificate with the same key: issued certificates and the old `ca.pem` stay valid."""
    key = _read_authority_key(folder / "ca.key")
    certificate = _certificate("fedcopl federation", key, None, 4 * _VALID, is_authority=True)
    publish_bytes(folder / "ca.pem", certificate.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


def given_certificates(ca: Path, certificate: Path, key: Path, reached_by: str = "127.0.0.1") -> Certificates:
    """Check and return the operator's own files for a server that connects to itself by the address `reached_by`."""
    missing = [file for file in (ca, certificate, key) if not file.is_file()]
    if missing:
        raise FederationError(f"{missing[0]}: there is no such certificate or key")
    try:
        is_valid = _covers(certificate, {reached_by})
    except (ValueError, x509.ExtensionNotFound) as error:
        raise FederationError(f"{certificate}: is not a server certificate: {error}") from error
    if not is_valid:
        raise FederationError(
            f"{certificate}: must be valid for at least a month and name {reached_by}, "
            "the address by which the server connects to itself"
        )
    return Certificates(ca, certificate, key)


def certificate_end(file: Path) -> datetime:
    """Return when a certificate expires."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise FederationError(f"{file}: is not a certificate: {error}") from error


def check_not_expired(files: Certificates, remedy: str) -> None:
    """Raise `FederationError` if the certificate of the server or of its authority has expired."""
    for file in (files.ca, files.certificate):
        end = certificate_end(file)
        if end < datetime.now(UTC):
            raise FederationError(f"{file}: expired on {end:%Y-%m-%d}, no site accepts it; {remedy}")


def check_addresses(addresses: Iterable[str], origin: str) -> None:
    """Raise `ConfigError` for an invalid address; `origin` is the option or file that has it."""
    for address in addresses:
        try:
            _general_name(address)
        except ValueError as error:
            raise ConfigError(f"{origin}: {error}") from error


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    write_private(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _read_authority_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{file}: is not a private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{file}: is not a key made by fedcopl; give your own files with --certificates")
    return key


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name | None, valid: timedelta, *, is_authority: bool
) -> x509.CertificateBuilder:
    """Return the unsigned certificate of a key; without `issuer` its issuer is its own subject."""
    subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.now(UTC)
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=is_authority, crl_sign=is_authority, **_NO_USAGE)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks differ: to a site whose clock is slow, the certificate must not be from the future.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + valid)
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _covers(certificate: Path, addresses: set[str]) -> bool:
    """Return whether a certificate includes all these addresses, and is valid for at least a month."""
    if not certificate.exists():
        return False
    parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
    included = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    soon = datetime.now(UTC) + timedelta(days=30)
    return parsed.not_valid_after_utc > soon and all(name in included for name in map(_general_name, addresses))


def _general_name(text: str) -> x509.GeneralName:
    """Return an IP address or a host name as a name for a certificate; `ValueError` if it is neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        name = text.encode("idna").decode()  # internationalised names
    except UnicodeError:
        name = ""
    if not _HOST_NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not a host name or IP address; write it as server.example, without a port")
    return x509.DNSName(name)
