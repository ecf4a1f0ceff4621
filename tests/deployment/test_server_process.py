"""A server's SuperLink and its registry of sites, and the addresses it listens on."""

import importlib
import shutil
import socket
from contextlib import closing, contextmanager
from types import SimpleNamespace

import httpx
import pytest

from deployment.toolbox import NotingReporter, join_refusal
from fedcopl.deployment.addresses import own_address
from fedcopl.deployment.flower_internals.connections import Control
from fedcopl.deployment.keys import SiteKey, server_certificates, site_key
from fedcopl.deployment.server import server_process
from fedcopl.deployment.server.server_process import ServerOptions, _admit, _connect_control, _keep_admitted, _superlink
from fedcopl.deployment.site.site_process import ServerAddress
from free_ports import free_port
from waiting import until

REJECTED = "the server rejects this site"


class FakeControlClient:
    """A SuperLink's registry that refuses some keys."""

    def __init__(self, refused=()):
        self.registered, self.refused = {}, refused

    def ListNodes(self, request):
        nodes = [
            SimpleNamespace(name=name, public_key=key, node_id=key, status="online", last_activated_at="now")
            for key, name in self.registered.items()
        ]
        return SimpleNamespace(nodes_info=nodes)

    def RegisterNode(self, request):
        if request.public_key in self.refused:
            answer = httpx.Response(409, text="Public key\nalready in use.")
            raise httpx.HTTPStatusError("409", request=httpx.Request("POST", "https://x"), response=answer)
        self.registered[request.public_key] = request.name


@pytest.fixture
def control():
    made = Control.__new__(Control)
    made._client = FakeControlClient(refused={b"2"})
    return made


def test_the_superlink_requires_tls_and_registered_keys_and_stores_nothing_on_disk(tmp_path, monkeypatch):
    class Started(Exception):
        pass

    def start(command, **options):
        raise Started(command[command.index("--host") :])

    files = server_certificates(tmp_path, [])
    monkeypatch.setattr(server_process.subprocess, "Popen", start)
    with pytest.raises(Started) as started, _superlink(ServerOptions(tmp_path, tmp_path / "sites", files), 1000):
        pass
    parser = importlib.import_module("flwr.superlink.cli.flower_superlink")  # the package has a function of this name
    parsed = parser._parse_args_run_superlink().parse_args(started.value.args[0])  # Flower's own parser
    assert (parsed.ssl_certfile, parsed.ssl_keyfile) == (str(files.certificate), str(files.key))
    assert (parsed.insecure, parsed.enable_supernode_auth) == (False, True)
    assert parsed.database == importlib.import_module("flwr.supercore.constant").FLWR_IN_MEMORY_DB_NAME


def test_a_key_that_cannot_be_registered_does_not_stop_the_others(control):
    progress = NotingReporter()
    _admit(control, [SiteKey("a", b"1"), SiteKey("b", b"2"), SiteKey("c", b"3")], progress)
    first, refusal, last = progress.notes
    assert (first, last) == ("a may join now", "c may join now")
    assert refusal.startswith("b cannot be registered (Public key already in use.)")
    assert control._client.registered == {b"1": "a", b"3": "c"}
    _admit(control, [SiteKey("a", b"1"), SiteKey("c", b"3")], progress)
    assert len(progress.notes) == 3


@contextmanager
def open_for_sites(root, host="127.0.0.1"):
    """Start a server without a run; yields its reporter, its address and its settings."""
    folder, progress = root / "federation", NotingReporter()
    options = ServerOptions(
        folder, folder / "sites", server_certificates(folder, [own_address(host)]), host, free_port()
    )
    with (
        _superlink(options, 10**6) as (link, secret),
        closing(_connect_control(options, link, secret)) as control,
        _keep_admitted(options.sites, control, progress),
    ):
        yield progress, ServerAddress(options.local, options.certificates.ca), options


@pytest.mark.slow
def test_a_removed_site_rejoins_with_a_new_key(tmp_path):
    private, public = site_key(tmp_path / "site", "hospital")
    other, other_public = site_key(tmp_path / "other", "zoo")
    sites = tmp_path / "federation/sites"

    def admit(file, name):
        shutil.copy(file, tmp_path / "part")
        (tmp_path / "part").rename(sites / f"{name}.pub")

    with open_for_sites(tmp_path) as (progress, server, options):
        stranger = Control(options.local, options.certificates.ca, b"guessed")  # another user of this machine
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            stranger.sites()
        assert stranger.register("hospital", b"a key of his own") == "status 404"
        until(lambda: "refused: '/v1/control/register-node'" in options.log.read_text(), options.log.read_text)
        admit(public, "hospital")
        until(lambda: join_refusal(server, private) is None, lambda: progress.notes)
        (sites / "hospital.pub").unlink()
        until(lambda: (join_refusal(server, private) or "").startswith(REJECTED), lambda: progress.notes)

        admit(public, "hospital")  # the old key: the operator gets instructions
        until(lambda: any("hospital cannot be registered" in note for note in progress.notes), lambda: progress.notes)
        assert "the site needs a new key (delete its site.key" in progress.notes[-1]
        assert (join_refusal(server, private) or "").startswith(REJECTED)
        admit(other_public, "zoo")  # other sites can still be admitted
        until(lambda: join_refusal(server, other) is None, lambda: progress.notes)
        old = private.read_bytes()
        private.unlink()
        site_key(tmp_path / "site", "hospital")
        assert private.read_bytes() != old
        admit(public, "hospital")
        until(lambda: join_refusal(server, private) is None, lambda: progress.notes)

    private.write_bytes(old)
    site_key(tmp_path / "site", "hospital")
    admit(public, "hospital")
    with open_for_sites(tmp_path) as (progress, server, _):  # a restarted server admits the old key too
        assert join_refusal(server, private) is None
        assert join_refusal(server, other) is None
    assert progress.notes == []
    flower = options.log.parent  # replies are not on the disk, and the folder is private
    assert list(flower.glob("*.db*")) == [] and flower.stat().st_mode & 0o077 == 0


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


HOSTS = ["127.0.0.2", *(["::1", "::"] if has_ipv6() else [])]


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTS)
def test_a_server_may_listen_on_one_address_or_on_ipv6(tmp_path, host):
    private, public = site_key(tmp_path / "site", "hospital")
    (tmp_path / "federation/sites").mkdir(parents=True)
    shutil.copy(public, tmp_path / "federation/sites")
    with open_for_sites(tmp_path, host) as (_, server, options):
        assert server.address.startswith("127.0.0.2:" if host == "127.0.0.2" else "[::1]:")
        assert join_refusal(server, private) is None
        with pytest.raises(OSError):  # other addresses of this machine are closed
            socket.create_connection(("127.0.0.3", options.port), timeout=5).close()
