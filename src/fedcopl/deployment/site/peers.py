"""Authentication of peers: a site takes part in secure aggregation only with sites whose keys it trusts.

Each aggregation has new keys. A site signs its own with `site.key`, the key that it joins with, and the server forwards
this signature, the voucher. A site verifies all vouchers before it shares anything. The operator gives the trusted keys
in a folder of `site.pub` files (`--peers`); otherwise those of the first aggregation are stored and printed (trust on
first use). A server that simulates sites itself has no trusted keys. A name keeps its key.

Class feature sums of all runs are over the same sites: the difference of two sums could be that of one site.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)

from ...errors import ConfigError
from ...files import reading, write_private
from ...messages import ShareKeys
from ..keys import private_key, read_site_keys
from ..message_format import one_line

_PINNED_PEERS = "peers.json"
_MEMBERS = "members.json"  # sites of the first class feature sums that this site has sent
_LENGTH = 2  # bytes that hold the length of a public key
_SIGNED = b"fedcopl secure aggregation "  # before the session and the keys in what a voucher signs


@dataclass(frozen=True)
class Identity:
    """The key that a site joins with."""

    file: Path  # site.key

    @cached_property
    def _private(self) -> ec.EllipticCurvePrivateKey:
        return private_key(self.file)

    @cached_property
    def public(self) -> bytes:
        return self._private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def vouch(self, session: bytes, keys: bytes) -> bytes:
        """Return a voucher for the keys that this site made for an aggregation: its public key and its signature."""
        signature = self._private.sign(_SIGNED + session + keys, ec.ECDSA(SHA256()))
        return len(self.public).to_bytes(_LENGTH) + self.public + signature


def _verified_signer(voucher: bytes, session: bytes, keys: bytes) -> bytes | None:
    """Return the public key of a voucher if its signature of these keys is valid, else None."""
    end = _LENGTH + int.from_bytes(voucher[:_LENGTH])
    public, signature = voucher[_LENGTH:end], voucher[end:]
    try:
        key = load_der_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return None
        key.verify(signature, _SIGNED + session + keys, ec.ECDSA(SHA256()))
    except (ValueError, TypeError, InvalidSignature):
        return None
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@dataclass(frozen=True)
class Peers:
    """The public keys that a site trusts in secure aggregation."""

    folder: Path  # of the site
    own: Identity
    trusted_folder: Path | None = None  # `--peers`: a folder of public keys
    requires_sites: bool = False  # `--min-sites` is set: no site is added after the first aggregation
    notify: Callable[[str], None] = lambda line: None

    def objection(self, request: ShareKeys) -> str | None:
        """Return why the site takes no part in an aggregation with these keys; None: all are trusted."""
        signers = {
            name: _verified_signer(request.vouchers.get(name, b""), request.session, keys)
            for name, keys in sorted(request.keys.items())
        }
        unsigned = [name for name, key in signers.items() if key is None]
        if unsigned:
            return f"the keys of {one_line(unsigned[0])} have no valid signature"
        peer_keys = {name: key for name, key in signers.items() if key is not None and key != self.own.public}
        if len({*peer_keys.values(), self.own.public}) != len(signers):
            return "the list of keys has one site twice, or lacks this site"
        return (self._untrusted(peer_keys) if self.trusted_folder else None) or self._pin_keys(peer_keys)

    def objection_to_members(self, members: Collection[str]) -> str | None:
        """Return why the site sends no class feature sums with these members; None: they are those of earlier runs."""
        before = self._read(_MEMBERS)
        if not before or set(before) == set(members):
            return None
        return (
            f"its class feature sums were over the sites {', '.join(map(one_line, before))}, and sums over other sites "
            f"would reveal those of one site; the people of this site can allow it by removing {_MEMBERS}"
        )

    def pin_members(self, members: Collection[str]) -> None:
        """Store the members of the first class feature sums."""
        if not (self.folder / _MEMBERS).exists():
            write_private(self.folder / _MEMBERS, json.dumps(dict.fromkeys(sorted(members), ""), indent=1).encode())

    def _untrusted(self, peer_keys: Mapping[str, bytes]) -> str | None:
        """Return the reason if a key is not in the folder of trusted keys; None if all are."""
        assert self.trusted_folder is not None
        keys = (load_pem_public_key(key.public) for key in read_site_keys(self.trusted_folder).values())
        trusted = {key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for key in keys}
        unknown = [name for name, key in peer_keys.items() if key not in trusted]
        return f"{one_line(unknown[0])} has no key in the folder of --peers" if unknown else None

    def _pin_keys(self, peer_keys: Mapping[str, bytes]) -> str | None:
        """Store the keys of new sites, or return the reason if a key has changed or a new site may not be added."""
        pinned = self._read(_PINNED_PEERS)  # name -> public key
        for name, key in peer_keys.items():
            if pinned.get(name, key.hex()) != key.hex():
                return f"{one_line(name)} has another key than in the first secure aggregation"
        new = {name: key.hex() for name, key in peer_keys.items() if name not in pinned}
        if pinned and new and self.requires_sites and not self.trusted_folder:
            return f"{one_line(min(new))} was not in the first secure aggregation; name all sites with --peers"
        if new:
            write_private(self.folder / _PINNED_PEERS, json.dumps({**pinned, **new}, indent=1).encode())
            for name in () if self.trusted_folder else new:
                digest = sha256(peer_keys[name]).hexdigest()[:16]
                self.notify(f"trusting {one_line(name)} in secure aggregation from now on, key {digest}")
        return None

    def _read(self, name: str) -> dict[str, str]:
        file = self.folder / name
        with reading(file):
            return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def check_peers(trusted_folder: Path | None) -> None:
    """Raise `ConfigError` if the folder has no keys."""
    if trusted_folder is not None and (not trusted_folder.is_dir() or not read_site_keys(trusted_folder)):
        raise ConfigError(
            f"--peers {trusted_folder}: has no public keys; it should hold each site's site.pub, renamed to SITE.pub"
        )
