"""Secure aggregation with trusted keys: a server that simulates the other sites learns nothing."""

from types import SimpleNamespace

import numpy as np
import pytest

from fakes import NO_PRIORS, START, FakeLearner, run, start
from fedcopl.config import RunConfig
from fedcopl.deployment.keys import site_key
from fedcopl.deployment.site.peers import Identity, Peers, _verified_signer, check_peers
from fedcopl.deployment.site.pipeline import _refuse, known_peers, vouched
from fedcopl.deployment.site.site_state import SiteProgress
from fedcopl.deployment.terms import Refused
from fedcopl.errors import ConfigError
from fedcopl.federation.client import Client
from fedcopl.federation.client_state import ClientState
from fedcopl.messages import SetupKeys, ShareKeys
from fedcopl.privacy.masking import public_keys, setup_keys
from fedcopl.simulation.simulate import LocalTransport

SETTINGS = {"rounds": 1, "priors": NO_PRIORS, "privacy": {"secure_aggregation": True}}
CONFIG = RunConfig.from_mapping(SETTINGS, "test")
SESSION = b"s" * 16


def identity(folder, name):
    return Identity(site_key(folder / name, name)[0])


@pytest.fixture
def three(tmp_path):
    """Three sites, the folder with all their keys, and their notes."""
    names = ["north", "south", "west"]
    keys = tmp_path / "keys"
    keys.mkdir()
    identities = {name: identity(tmp_path, name) for name in names}
    for name in names:
        (keys / f"{name}.pub").write_bytes((tmp_path / name / "site.pub").read_bytes())
    return SimpleNamespace(identities=identities, keys=keys, root=tmp_path, notes=[])


class PolicedClient:
    """A client behind the two policies of the pipeline for peers."""

    def __init__(self, client, peers):
        self.client, self.peers = client, peers

    def handle(self, message, state):
        request = SimpleNamespace(request=message, client=self.client, peers=self.peers)
        _refuse(known_peers(request, SiteProgress()))
        reply, after = self.client.handle(message, state)
        return vouched(request, state, reply), after


def site_of(three, name, *, given=True, requires_sites=False):
    peers = Peers(
        three.root / name, three.identities[name], three.keys if given else None, requires_sites, three.notes.append
    )
    return PolicedClient(Client(FakeLearner(len(name)), CONFIG), peers)


def key_list(three, others, client):
    """Return the list of keys of north and these others that the server sends, and the state of north."""
    reply, state = client.handle(SetupKeys(0, SESSION), ClientState())
    keys, vouchers = {"north": reply.keys}, {"north": reply.voucher}
    for name, other in others.items():
        keys[name] = public_keys(setup_keys(SESSION))
        vouchers[name] = b"" if other is None else other.vouch(SESSION, keys[name])
    return ShareKeys(0, SESSION, keys, vouchers), state


def invented(three, count=3):
    return {f"site-{number}": identity(three.root / "server", f"invented-{number}") for number in range(count)}


def test_invented_sites_are_refused_in_an_aggregation(three):
    """A server that simulates all other sites would learn one site's numbers. It has no trusted key."""
    client = site_of(three, "north")
    message, state = key_list(three, invented(three), client)
    with pytest.raises(Refused, match=r"^site-0 has no key in the folder of --peers$"):
        client.handle(message, state)
    unsigned, state = key_list(three, {"south": None, "west": None}, client)
    with pytest.raises(Refused, match=r"^the keys of south have no valid signature$"):
        client.handle(unsigned, state)


def test_vouchers_of_another_aggregation_or_key_are_refused(three):
    client = site_of(three, "north")
    message, state = key_list(three, {"south": three.identities["south"], "west": three.identities["west"]}, client)
    servers_own = public_keys(setup_keys(SESSION))
    swapped = ShareKeys(0, SESSION, {**message.keys, "south": servers_own}, message.vouchers)
    with pytest.raises(Refused, match=r"the keys of south have no valid signature"):
        client.handle(swapped, state)
    assert _verified_signer(message.vouchers["south"], b"t" * 16, message.keys["south"]) is None
    assert (
        _verified_signer(message.vouchers["south"], SESSION, message.keys["south"]) == three.identities["south"].public
    )
    for rubbish in (b"", b"\x00", b"\xff" * 200, message.vouchers["south"][:-1]):
        assert _verified_signer(rubbish, SESSION, message.keys["south"]) is None


def test_a_site_cannot_count_twice(three):
    client = site_of(three, "north")
    message, state = key_list(three, {"south": three.identities["south"], "again": three.identities["south"]}, client)
    with pytest.raises(Refused, match=r"has one site twice"):
        client.handle(message, state)
    message, state = key_list(three, {"south": three.identities["south"], "again": three.identities["north"]}, client)
    with pytest.raises(Refused, match=r"has one site twice"):
        client.handle(message, state)


def test_without_peers_the_keys_of_the_first_aggregation_are_stored_and_shown(three):
    client = site_of(three, "north", given=False)
    others = {"south": three.identities["south"], "west": three.identities["west"]}
    message, state = key_list(three, others, client)
    assert set(client.handle(message, state)[0].sealed) == {"north", "south", "west"}
    assert [note.rpartition(" ")[0] for note in three.notes] == [
        "trusting south in secure aggregation from now on, key",
        "trusting west in secure aggregation from now on, key",
    ]
    message, state = key_list(three, others, client)
    client.handle(message, state)
    assert len(three.notes) == 2  # reported once
    message, state = key_list(three, {**others, "west": identity(three.root / "server", "west")}, client)
    with pytest.raises(Refused, match=r"^west has another key than in the first secure aggregation$"):
        client.handle(message, state)
    message, state = key_list(three, others | invented(three, 1), client)
    client.handle(message, state)  # without --min-sites a new site is added
    assert len(three.notes) == 3


def test_with_min_sites_no_site_is_added_later(three):
    client = site_of(three, "north", given=False, requires_sites=True)
    others = {"south": three.identities["south"], "west": three.identities["west"]}
    message, state = key_list(three, others, client)
    client.handle(message, state)
    message, state = key_list(three, others | invented(three), client)
    with pytest.raises(Refused, match=r"^site-0 was not in the first secure aggregation; name all sites with --peers$"):
        client.handle(message, state)


def test_verifying_peers_does_not_change_a_run(three):
    sites = {name: site_of(three, name) for name in three.identities}
    plain = {name: site.client for name, site in sites.items()}
    shared = {}
    for kind, clients in {"policies": sites, "plain": plain}.items():
        shared[kind] = run(CONFIG, LocalTransport(clients), start(), lambda *_: None).shared["visual"]
    assert np.array_equal(shared["policies"], shared["plain"])
    assert not np.array_equal(shared["plain"], START["visual"])


def test_an_invalid_folder_of_peers_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--peers .*: has no public keys; it should hold each site's site.pub"):
        check_peers(tmp_path)
    check_peers(None)
