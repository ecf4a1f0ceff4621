"""Key pairs of sites: made by a site or its operator; the server registers the public keys."""

import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from ..errors import FederationError
from ..files import publish_bytes, write_private
from .certificates import CURVE

_SECRET = 32  # bytes


def site_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the files of this site's private and public key; made when the site joins for the first time."""
    private, public = folder / "site.key", folder / "site.pub"
    if not private.exists():
        write_private(private, new_site_key())
    try:
        line = public_half(private.read_bytes(), name)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{private}: is not a private key: {error}") from error
    publish_bytes(public, line)
    return private, public


def private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Load the private key of a site."""
    key = load_ssh_private_key(file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{file}: is not the key of a site")
    return key


def new_site_key() -> bytes:
    """Make a private key in the format of OpenSSH."""
    return ec.generate_private_key(CURVE).private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def site_secret(folder: Path) -> bytes:
    """Return the seed of this site's noise; made when the site joins for the first time."""
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


def public_half(private: bytes, name: str) -> bytes:
    """Return the content of `site.pub` for that of `site.key`: kind, key, and name of the site."""
    key = load_ssh_private_key(private, None)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return line + b" " + name.encode() + b"\n"


@dataclass(frozen=True)
class SiteKey:
    """The name of a site, and its public key in the format of Flower's registry."""

    name: str
    public: bytes


def key_digest(key: SiteKey) -> str:
    """Return a short digest that identifies a key."""
    return sha256(key.public).hexdigest()[:16]


def read_site_keys(folder: Path) -> dict[str, SiteKey]:
    """Read every `*.pub` file of a folder; returns name -> key."""
    keys = [read_site_key(file) for file in sorted(folder.glob("*.pub"))]
    by_name: dict[str, SiteKey] = {}
    for key in keys:
        if key.name in by_name:
            raise FederationError(f"{folder}: two keys have the site name {key.name!r}; rename one of the sites")
        by_name[key.name] = key
    twice = {key.public for key in keys if sum(key.public == other.public for other in keys) > 1}
    if twice:
        same = " and ".join(key.name for key in keys if key.public in twice)
        raise FederationError(f"{folder}: {same} have the same key; each site needs its own")
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
