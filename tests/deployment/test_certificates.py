"""Certificates and keys are created once, renewed before they expire, and refused if they are invalid."""

import asyncio
import resource
import socket
import ssl
import threading
from datetime import timedelta

import pytest

from deployment.toolbox import join_refusal
from fedcopl.deployment import keys
from fedcopl.deployment.flower_internals import superlink as link
from fedcopl.deployment.keys import (
    check_not_expired,
    given_certificates,
    public_key_line,
    read_site_keys,
    server_certificates,
    site_key,
    site_secret,
)
from fedcopl.deployment.site.site_process import ServerAddress, check_server
from fedcopl.errors import FederationError, RunFolderError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return server_certificates(tmp_path_factory.mktemp("server"), ["server.example"])


@pytest.fixture
def listening(made):
    """A TLS server with these certificates on a port of its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    with socket.create_server(("127.0.0.1", 0)) as plain:
        listener = context.wrap_socket(plain, server_side=True)

        def serve():
            while True:
                try:
                    listener.accept()[0].close()
                except ssl.SSLError:
                    continue  # a client that rejects the certificate
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield plain.getsockname()[1] if plain.fileno() != -1 else listener.getsockname()[1]
        listener.close()


def test_a_site_accepts_the_right_certificate(made, listening):
    check_server(ServerAddress(f"127.0.0.1:{listening}", made.ca))
    check_server(ServerAddress(f"localhost:{listening}", made.ca))


def test_a_certificate_of_another_server_is_an_error_that_names_both(made, listening, tmp_path):
    other = server_certificates(tmp_path, [])
    with pytest.raises(FederationError, match=rf"127.0.0.1:{listening}: its certificate is not signed by .*ca\.pem"):
        check_server(ServerAddress(f"127.0.0.1:{listening}", other.ca))


def test_a_running_site_reports_a_wrong_certificate(made, listening, tmp_path):
    other = server_certificates(tmp_path, [])
    reason = join_refusal(ServerAddress(f"127.0.0.1:{listening}", other.ca), site_key(tmp_path, "a")[0])
    assert reason.startswith(f"127.0.0.1:{listening}: its certificate is not signed by {other.ca} (")
    assert reason.endswith("(--address); trying again") and "_ssl" not in reason


def test_a_server_with_an_expired_certificate_does_not_start(tmp_path, monkeypatch):
    files = server_certificates(tmp_path, [])
    check_not_expired(files, "renew it")
    monkeypatch.setattr(keys, "_VALID", timedelta(minutes=-30))
    files.certificate.unlink()
    server_certificates(tmp_path, [])
    with pytest.raises(FederationError, match=r"server\.pem: expired on \d+-\d\d-\d\d, no site accepts it; renew it"):
        check_not_expired(files, "renew it")


def test_a_site_waits_for_a_server_that_is_not_running_yet(made, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = ServerAddress(f"127.0.0.1:{port}", made.ca)
    check_server(server)
    assert join_refusal(server, site_key(tmp_path, "a")[0]).startswith(f"no server at 127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["server", "server:", "server:x", ":9092"])
def test_an_invalid_server_address_is_refused(made, address):
    with pytest.raises(FederationError, match="is not an address"):
        check_server(ServerAddress(address, made.ca))


def test_an_invalid_certificate_file_is_refused(tmp_path):
    (tmp_path / "ca.pem").write_text("hello")
    for file in (tmp_path / "ca.pem", tmp_path / "nothing.pem"):
        with pytest.raises(FederationError, match=r"\.pem: is not the CA certificate of a server"):
            check_server(ServerAddress("127.0.0.1:1", file))


def test_certificates_are_renewed_only_for_a_new_address_or_expiry(tmp_path, monkeypatch):
    first = server_certificates(tmp_path, ["a.example"])
    before = first.certificate.read_bytes(), first.ca.read_bytes()
    again = server_certificates(tmp_path, ["a.example"])
    assert (again.certificate.read_bytes(), again.ca.read_bytes()) == before
    other = server_certificates(tmp_path, ["b.example", "192.0.2.7"])
    assert other.certificate.read_bytes() != before[0]
    assert other.ca.read_bytes() == before[1]  # the ca.pem of the sites stays valid
    monkeypatch.setattr(keys, "_VALID", timedelta(days=3))
    other.certificate.unlink()
    server_certificates(tmp_path, ["b.example"])
    near = other.certificate.read_bytes()
    assert server_certificates(tmp_path, ["b.example"]).certificate.read_bytes() != near


def test_given_certificates_are_used_if_they_are_valid_for_the_server(made, tmp_path, monkeypatch):
    assert given_certificates(made.ca, made.certificate, made.key) == made
    monkeypatch.setattr(keys, "_LOOPBACK", set())
    elsewhere = server_certificates(tmp_path, ["server.example"])
    with pytest.raises(FederationError, match=r"and name 127\.0\.0\.1"):
        given_certificates(elsewhere.ca, elsewhere.certificate, elsewhere.key)
    with pytest.raises(FederationError, match="is not a server certificate"):
        given_certificates(made.ca, made.key, made.key)
    with pytest.raises(FederationError, match="there is no such certificate"):
        given_certificates(made.ca, tmp_path / "nothing", made.key)


def test_only_the_owner_can_read_private_keys(made, tmp_path):
    private, public = site_key(tmp_path, "hospital")
    for file in (made.key, made.key.parent / "ca.key", private):
        assert file.stat().st_mode & 0o777 == 0o600
    assert public.read_bytes().startswith(b"ecdsa-sha2-nistp384 ")


def test_a_site_keeps_its_key(tmp_path):
    _, public = site_key(tmp_path, "hospital")
    first = public.read_bytes()
    assert site_key(tmp_path, "hospital")[1].read_bytes() == first
    assert site_key(tmp_path, "clinic")[1].read_bytes() == first.replace(b"hospital", b"clinic")


def test_a_full_disk_leaves_no_key_and_no_secret(tmp_path):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, old[1]))
    try:
        for write in (lambda: site_secret(tmp_path), lambda: site_key(tmp_path, "a")):
            with pytest.raises(RunFolderError, match=r"site\.(secret|key): cannot be written"):
                write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert list(tmp_path.iterdir()) == []
    assert len(site_secret(tmp_path)) == 32


def test_the_secret_of_a_site_is_random_and_kept(tmp_path):
    first = site_secret(tmp_path / "a")
    assert site_secret(tmp_path / "a") == first != site_secret(tmp_path / "b")
    assert (tmp_path / "a/site.secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("size", [0, 31, 33])
def test_an_incomplete_secret_is_refused_with_a_remedy(tmp_path, size):
    (tmp_path / "site.secret").write_bytes(bytes(size))
    with pytest.raises(FederationError, match=rf"site\.secret: has {size} bytes instead of 32.*or delete this one"):
        site_secret(tmp_path)


def in_memory(folder, *names):
    """A folder of public keys; a name after a slash is that of another site's key."""
    for number, name in enumerate(names):
        called, _, like = name.partition("/")
        private, _ = site_key(folder / "folders" / (like or called), like or called)
        (folder / f"{number}.pub").write_bytes(public_key_line(private.read_bytes(), called))
    return folder


def test_the_keys_of_sites_are_read_from_a_folder(tmp_path):
    found = read_site_keys(in_memory(tmp_path, "a", "b with space"))
    assert sorted(found) == ["a", "b with space"]
    assert found["a"].public.startswith(b"-----BEGIN PUBLIC KEY")


def test_one_key_for_two_sites_is_refused(tmp_path):
    with pytest.raises(FederationError, match="a and b have the same key"):
        read_site_keys(in_memory(tmp_path, "a", "b/a"))


def test_one_name_for_two_keys_is_refused(tmp_path):
    in_memory(tmp_path, "a")
    private, _ = site_key(tmp_path / "another", "a")
    (tmp_path / "9.pub").write_bytes(public_key_line(private.read_bytes(), "a"))
    with pytest.raises(FederationError, match="two keys have the site name 'a'"):
        read_site_keys(tmp_path)


@pytest.mark.parametrize("text", ["", "hello", "ssh-ed25519 AAAA x", "ecdsa-sha2-nistp384 AAAA"])
def test_an_invalid_key_file_is_named(tmp_path, text):
    (tmp_path / "x.pub").write_text(text)
    with pytest.raises(FederationError, match=r"x\.pub: is not the public key of a site"):
        read_site_keys(tmp_path)


@pytest.mark.parametrize(
    ("path", "client", "is_allowed"),
    [
        ("/v1/fleet/pull-messages", "192.0.2.1", True),
        ("/v1/control/register-node", "192.0.2.1", False),
        ("/v1/control/start-run", "192.0.2.1", False),
        ("/v1/runtime/acquire-task", "192.0.2.1", False),
        ("/docs", "192.0.2.1", False),
        ("/v1/fleet/../control/start-run", "192.0.2.1", False),
        ("/v1/control/start-run", "127.0.0.1", True),
        ("/v1/control/start-run", "::1", True),
        ("/v1/control/start-run", None, False),
    ],
)
def test_only_fleet_is_open_to_other_machines(path, client, is_allowed):
    headers = [(b"x-fedcopl-control", b"key")]
    scope = {"type": "http", "path": path, "client": client and (client, 5), "headers": headers}
    assert link._LocalOnly(None, (), "key").allows(scope) is is_allowed


def test_a_rejected_request_gets_404():
    passed, sent = [], []

    async def app(scope, receive, send):
        passed.append(scope["path"])

    async def send(event):
        sent.append(event)

    guard = link._LocalOnly(app, (), "key")
    for path in ("/v1/control/start-run", "/v1/fleet/get-run"):
        asyncio.run(guard({"type": "http", "path": path, "client": ("192.0.2.1", 5)}, None, send))
    asyncio.run(guard({"type": "lifespan", "path": "start"}, None, send))
    assert passed == ["/v1/fleet/get-run", "start"]
    assert [event.get("status") for event in sent] == [404, None]


@pytest.mark.parametrize(
    ("path", "given_key", "is_allowed"),
    [
        ("/v1/control/register-node", b"key", True),
        ("/v1/control/register-node", b"guess", False),
        ("/v1/control/register-node", None, False),
        ("/v1/fleet/pull-messages", None, True),
        ("/health", None, True),
    ],
)
def test_control_needs_the_operators_key(path, given_key, is_allowed):
    headers = [] if given_key is None else [(b"x-fedcopl-control", given_key)]
    scope = {"type": "http", "path": path, "client": ("127.0.0.1", 5), "headers": headers}
    assert link._LocalOnly(None, (), "key").allows(scope) is is_allowed
    assert (
        link._LocalOnly(None).allows({**scope, "path": "/v1/control/x"}) is False
    )  # without a key no request is allowed
