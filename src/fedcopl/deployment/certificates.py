"""TLS certificates of a server, signed by a certificate authority of its own.

The authority's certificate, `ca.pem`, is the one file that a site needs to verify the server.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..errors import ConfigError, FederationError
from ..files import publish_bytes, write_private

CURVE = ec.SECP384R1()
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_VALID = timedelta(days=825)
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


@dataclass(frozen=True)
class Certificates:
    """Files of a server: `ca` is public, `key` is private."""

    ca: Path
    certificate: Path
    key: Path


def server_certificates(folder: Path, addresses: Iterable[str]) -> Certificates:
    """Return the certificates of this machine's server, also for its host names; see `issue_certificates`."""
    given = set(addresses)
    check_addresses(given, "--address")
    own = {name for name in (socket.gethostname(), socket.getfqdn()) if _HOST_NAME.fullmatch(name)}
    return issue_certificates(folder, given | own)


def issue_certificates(folder: Path, addresses: set[str]) -> Certificates:
    """Return the certificates in a folder; made if there are none, renewed if an address is new or expiry is near.

    They are also for the loopback addresses, by which the server reaches itself.
    """
    addresses = addresses | _LOOPBACK
    files = folder_certificates(folder)
    ca_key = folder / "ca.key"
    if not files.ca.exists() or not ca_key.exists():
        key = ec.generate_private_key(CURVE)
        write_private(ca_key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        publish_bytes(files.ca, _authority_certificate(key))
    if not files.key.exists() or not _covers(files.certificate, addresses):
        _write_server_certificate(files, ca_key, addresses)
    return files


def check_addresses(addresses: Iterable[str], origin: str) -> None:
    """Raise `ConfigError` for an invalid address; `origin` names the option or file at fault."""
    for address in addresses:
        try:
            _address(address)
        except ValueError as error:
            raise ConfigError(f"{origin}: {error}") from error


def folder_certificates(folder: Path) -> Certificates:
    """Return the paths of the certificates in a server's folder."""
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")


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


def renew_authority(folder: Path) -> None:
    """Extend the authority's certificate: what it has signed stays valid, and so does the old file until it expires."""
    key = _authority_key(folder / "ca.key")
    publish_bytes(folder / "ca.pem", _authority_certificate(key))


def given_certificates(ca: Path, certificate: Path, key: Path, reached_by: str = "127.0.0.1") -> Certificates:
    """Return the operator's own files, checked for a server that reaches itself at this address."""
    missing = [file for file in (ca, certificate, key) if not file.is_file()]
    if missing:
        raise FederationError(f"{missing[0]}: there is no such certificate or key")
    try:
        is_right = _covers(certificate, {reached_by})
    except (ValueError, x509.ExtensionNotFound) as error:
        raise FederationError(f"{certificate}: is not a server certificate: {error}") from error
    if not is_right:
        raise FederationError(
            f"{certificate}: must be valid for at least a month and include {reached_by}, "
            "the address at which the server reaches itself"
        )
    return Certificates(ca, certificate, key)


def _authority_certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    name = _name("fedcopl federation")
    certificate = (
        _builder(name, name, key.public_key(), 4 * _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


def _authority_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{file}: is not a private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{file}: is not a key made by fedcopl; name your own files instead")
    return key


def _write_server_certificate(files: Certificates, ca_key: Path, addresses: set[str]) -> None:
    authority = x509.load_pem_x509_certificate(files.ca.read_bytes())
    authority_key = _authority_key(ca_key)
    key = ec.generate_private_key(CURVE)
    certificate = (
        _builder(authority.subject, _name("fedcopl server"), key.public_key(), _VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(sorted(map(_address, addresses), key=str)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    write_private(files.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    publish_bytes(files.certificate, certificate.public_bytes(Encoding.PEM))


def _covers(certificate: Path, addresses: set[str]) -> bool:
    if not certificate.exists():
        return False
    parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
    alternative_names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    soon = datetime.now(UTC) + timedelta(days=30)
    return parsed.not_valid_after_utc > soon and all(_address(address) in alternative_names for address in addresses)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    # Clocks differ: a site whose clock is slow must not find the certificate not yet valid.
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
        name = text.encode("idna").decode()  # internationalised names
    except UnicodeError:
        name = ""
    if not _HOST_NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not a host name or IP address; write it as server.example, without a port")
    return x509.DNSName(name)
