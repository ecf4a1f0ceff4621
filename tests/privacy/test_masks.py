"""Masks cancel in the sum of all members, and clients refuse requests that would reveal a single client."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedcopl.privacy.mask_session import KEY, KEYS, SEALED, SHARE, CannotUnmask, Session, combine, unmask_threshold
from fedcopl.privacy.masking import (
    MaskedSum,
    WordStream,
    _find_this_client,
    _public_key,
    _seal,
    _shared_key,
    _thirds,
    _unseal,
    key_digest,
    mask,
    public_keys,
    setup_keys,
    share_keys,
    unmask,
)
from fedcopl.rng import stream

REQUEST_DIGEST = "digest of the request"


class Group:
    """The sessions of several clients, and everything that they send to the server."""

    def __init__(self, clients=5, seed=1, name=b"a sum", share=0.6):
        self.random = stream(seed, "keys").bytes
        self.names = [f"site {number}" for number in range(clients)]
        self.name = name
        self.sessions = {client: setup_keys(name, self.random) for client in self.names}
        self.roster = {client: public_keys(session) for client, session in self.sessions.items()}
        self.enough = unmask_threshold(clients, share)
        self.sealed, self.masked = {}, {}

    def share_keys(self, clients=None):
        for client in clients or self.names:
            out = share_keys(self.sessions[client], self.roster, self.enough, self.random)
            self.sealed[client], self.sessions[client] = out
        return self

    def mask(self, numbers, clients=None):
        peers = tuple(self.sealed)
        for client in clients or peers:
            out = mask(self.sessions[client], numbers[client], peers, REQUEST_DIGEST, self.enough)
            self.masked[client], self.sessions[client] = out
        return self

    def shares_of(self, client, sealed=None):
        sealed = sealed or {sender: self.sealed[sender][client] for sender in self.sealed}
        return unmask(self.sessions[client], sealed)

    def sum(self):
        return MaskedSum(self.name, self.roster, self.masked, REQUEST_DIGEST, self.enough)


def numbers_of(names, size=4, seed=0):
    return {
        name: stream(seed, "numbers", place).integers(0, 2**64, size, np.uint64) for place, name in enumerate(names)
    }


def total(numbers, clients):
    return np.sum([numbers[client] for client in clients], axis=0, dtype=np.uint64)


@given(st.data())
def test_enough_shares_unmask_the_sum_of_all_members(data):
    # Some are lost before they share keys, some before they send shares of the self masks: enough are always left.
    group = Group(clients=data.draw(st.integers(2, 6)), seed=data.draw(st.integers(0, 50)))
    numbers = numbers_of(group.names)

    def some_of(clients):
        return data.draw(st.permutations(clients))[: data.draw(st.integers(group.enough, len(clients)))]

    group.share_keys(some_of(group.names))
    group.mask(numbers)
    helpers = some_of(list(group.masked))
    unmasked = group.sum().unmasked({client: group.shares_of(client) for client in helpers})
    assert (unmasked == total(numbers, group.masked)).all()


def test_too_few_shares_do_not_unmask_a_sum():
    group = Group()
    group.share_keys().mask(numbers_of(group.names))
    helped = {client: group.shares_of(client) for client in group.names}
    two = {client: helped[client] for client in group.names[:2]}
    with pytest.raises(CannotUnmask, match="site 0: its masks cannot be removed: the shares of 2 clients"):
        group.sum().unmasked(two)
    guessed = replace(group.sum(), threshold=2)  # two points of a parabola, taken for those of a line
    with pytest.raises(CannotUnmask):
        guessed.unmasked(two)


def test_a_sum_that_lacks_a_member_stays_masked():
    group = Group()
    numbers = numbers_of(group.names)
    group.share_keys().mask(numbers, group.names[:4])
    unmasked = group.sum().unmasked({client: group.shares_of(client) for client in group.masked})
    assert (unmasked != total(numbers, group.masked)).all()


def test_a_masked_reply_is_uniformly_distributed():
    # All its numbers are 0, so every byte of the reply is of the mask. 64 k bytes over 256 values.
    group = Group()
    zeros = {name: np.zeros(8192, np.uint64) for name in group.names}
    group.share_keys().mask(zeros)
    for masked in group.masked.values():
        seen = np.bincount(masked.view(np.uint8), minlength=256)
        assert chisquare(seen).pvalue > 1e-4
    assert not total(zeros, group.names).any()
    assert not group.sum().unmasked({client: group.shares_of(client) for client in group.names}).any()


def test_keys_differ_between_sums_and_masks_between_requests():
    group, zeros = Group(), {name: np.zeros(4, np.uint64) for name in Group().names}
    group.share_keys()
    first = mask(group.sessions["site 0"], zeros["site 0"], group.names, "one request", 3)[0]
    second = mask(group.sessions["site 0"], zeros["site 0"], group.names, "another", 3)[0]
    assert (first != second).all()
    assert setup_keys(b"x").private != setup_keys(b"x").private
    assert len(public_keys(setup_keys(b"x"))) == KEYS


def test_a_wrong_share_is_ignored_and_its_sender_is_named():
    group = Group()
    numbers = numbers_of(group.names)
    group.share_keys().mask(numbers)
    helped = {client: group.shares_of(client) for client in group.names}
    helped["site 1"] = {client: bytes(SHARE) for client in group.names}
    sum_ = group.sum()
    assert (sum_.unmasked(helped) == total(numbers, group.names)).all()
    assert sum_.wrong_shares == {"site 1"}


def test_wrong_shares_never_give_a_wrong_sum():
    group = Group(clients=3, share=1.0)
    group.share_keys().mask(numbers_of(group.names))
    helped = {client: group.shares_of(client) for client in group.names}
    helped["site 2"] = dict.fromkeys(group.names, b"\xff" * SHARE)
    with pytest.raises(CannotUnmask, match="are inconsistent"):
        group.sum().unmasked(helped)


def test_members_with_invalid_shares_are_named():
    group = Group()
    group.share_keys()
    for client in ("site 1", "site 3"):
        group.sealed[client] = dict.fromkeys(group.names, bytes(SEALED))
    group.mask(numbers_of(group.names))
    helped = {client: group.shares_of(client) for client in group.masked}
    with pytest.raises(CannotUnmask, match="site 1: its masks cannot be removed: the shares of 0 clients") as caught:
        group.sum().unmasked(helped)
    assert caught.value.reasons == dict.fromkeys(
        ["site 1", "site 3"], "its masks cannot be removed: the shares of 0 clients are inconsistent"
    )


def masked_group():
    group = Group()
    return group.share_keys().mask(numbers_of(group.names))


def test_only_keys_of_self_masks_are_shared():
    group = masked_group()
    shares = {client: group.shares_of(client) for client in group.masked}
    assert set(shares["site 0"]) == set(group.names)
    key = group.sum()._self_mask_key("site 0", shares)
    assert _public_key(key) == _thirds(group.roster["site 0"])[2]
    points = {number: shares[client]["site 0"] for number, client in enumerate(group.names[:3], 1)}
    assert _public_key(combine(points).to_bytes(KEY)) != _thirds(group.roster["site 0"])[1]


@pytest.mark.parametrize("members", [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [5]])
def test_a_sum_over_other_members_than_the_request_named_is_not_unmasked(members):
    group = masked_group()
    sealed = {f"site {number}": group.sealed["site 0"]["site 0"] for number in members}
    with pytest.raises(ValueError, match="for other clients than those of the masked reply"):
        group.shares_of("site 0", sealed)


def test_a_tampered_share_is_not_sent():
    group = masked_group()
    sealed = {sender: group.sealed[sender]["site 0"] for sender in group.sealed}
    sealed["site 1"] = sealed["site 1"][:-1] + bytes([sealed["site 1"][-1] ^ 1])
    sealed["site 2"] = group.sealed["site 2"]["site 3"]  # encrypted for another client
    sealed["site 3"] = b"short"
    assert set(group.shares_of("site 0", sealed=sealed)) == {"site 0", "site 4"}


def test_unmask_before_mask_is_refused():
    group = Group().share_keys()
    with pytest.raises(ValueError, match="Unmask request"):
        group.shares_of("site 0")
    with pytest.raises(ValueError, match="Unmask request"):
        unmask(setup_keys(b"x"), {})


def test_keys_are_shared_once_and_used_once():
    group = Group().share_keys()
    with pytest.raises(ValueError, match="keys that were already shared"):
        group.share_keys(["site 0"])
    group.mask(numbers_of(group.names))
    with pytest.raises(ValueError, match="without new keys"):
        group.mask(numbers_of(group.names))
    with pytest.raises(ValueError, match="without new keys"):
        mask(setup_keys(b"x"), np.zeros(1, np.uint64), ["a"], REQUEST_DIGEST, 1)


@pytest.mark.parametrize(
    "peers",
    [
        ["site 0", "site 1"],
        ["site 1", "site 2", "site 3"],
        ["site 0", "site 1", "?"],
        ["site 0", "site 1", "site 1"],  # were it let through, each would add too small a part of the noise
        ["site 0", "site 1", "site 2", "site 2"],
    ],
)
def test_masking_needs_enough_members_that_shared_keys(peers):
    group = Group().share_keys()
    with pytest.raises(ValueError, match=f"among {len(peers)} clients; 3 different ones are needed"):
        mask(group.sessions["site 0"], np.zeros(1, np.uint64), peers, REQUEST_DIGEST, 3)


def test_a_roster_must_have_the_client_exactly_once():
    group = Group(clients=3)
    mine = group.roster["site 0"]
    for roster in (
        {},
        {"a": group.roster["site 1"]},
        {**group.roster, "again": mine},
        {"a": mine, "b": b"1", "c": b"1"},
    ):
        with pytest.raises(ValueError, match="exactly once, or contains one key twice"):
            _find_this_client(group.sessions["site 0"], roster)
    assert _find_this_client(group.sessions["site 1"], group.roster) == "site 1"


def test_sizes_of_keys_and_shares_are_those_the_server_checks():
    group = Group().share_keys()
    assert {len(piece) for sealed in group.sealed.values() for piece in sealed.values()} == {SEALED}
    assert {len(keys) for keys in group.roster.values()} == {KEYS}


def test_a_session_is_serialised():
    group = masked_group()
    for session in (setup_keys(b"\x00\xff"), group.sessions["site 0"], group.sessions["site 4"]):
        again = Session.from_bytes(session.to_bytes())
        assert again == session
        assert key_digest(again) == key_digest(session)
    assert group.sessions["site 0"].peers == tuple(group.names)


def test_clients_agree_on_keys_and_decrypt_only_with_them():
    one, other = bytes(range(KEY)), bytes(range(1, KEY + 1))
    key = _shared_key(one, _public_key(other), "label")
    assert key == _shared_key(other, _public_key(one), "label")
    assert key != _shared_key(one, _public_key(other), "another label")
    sealed = _seal(key, b"text", stream(0, "nonce").bytes)
    assert _unseal(key, sealed) == b"text"
    assert _unseal(key[::-1], sealed) is None


def test_a_word_stream_continues():
    whole, parts = WordStream(bytes(KEY)), WordStream(bytes(KEY))
    assert (whole(7) == np.concatenate([parts(3), parts(4)])).all()
    # AES-256 of 16 zero bytes under a key of zeros (NIST's AESAVS, KAT for a zero key): dc95c078a2408989...
    assert WordStream(bytes(KEY))(1).tobytes().hex() == "dc95c078a2408989"
