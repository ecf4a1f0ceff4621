"""A site behind a proxy: a real tunnel through a small proxy in this process, with TLS inside."""

import socket
import ssl
import threading
from contextlib import contextmanager

import httpx
import pytest

from fedcopl.deployment.addresses import bypass_proxy_for_localhost, connect, proxy_to
from fedcopl.deployment.flower_internals.site_connection import site_connection
from fedcopl.deployment.keys import issue_certificates, private_key, site_key
from fedcopl.deployment.site.site_process import ServerAddress, _join_error, check_server
from fedcopl.doctor.checks import _check_server as doctor_check
from fedcopl.errors import FederationError


@contextmanager
def listening(handle):
    """Listen on a port of this machine, and handle each connection in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(caller,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]


def _read_request(connection):
    """Read the whole request: a server that closes earlier resets the connection before its response is read."""
    with connection.makefile("rb") as request:
        lines = list(iter(request.readline, b"\r\n"))
        length = next((int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length")), 0)
        request.read(length)


@pytest.fixture
def certificates(tmp_path):
    return issue_certificates(tmp_path / "authority", {"server.example"})


@pytest.fixture
def server(certificates):
    """A TLS server with the certificate of server.example that refuses every request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)

    def refuse(caller):
        try:
            with context.wrap_socket(caller, server_side=True) as secured:
                _read_request(secured)
                secured.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        except OSError:  # a client that only checks the certificate
            pass

    with listening(refuse) as port:
        yield port


@pytest.fixture
def proxy(server, monkeypatch):
    """A proxy that connects to server.example, a name without an address; yields the requests to it."""
    connects = []

    def pass_on(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            target.close()

    def tunnel(caller):
        request = caller.recv(65536).decode()
        connects.append(request)
        there = socket.create_connection(("127.0.0.1", server))
        caller.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        threading.Thread(target=pass_on, args=(caller, there), daemon=True).start()
        pass_on(there, caller)

    with listening(tunnel) as port:
        for name in ("https_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://me:secret@127.0.0.1:{port}")
        yield connects


def test_a_site_connects_through_a_proxy(proxy, certificates, tmp_path):
    there = ServerAddress("server.example:9092", certificates.ca)
    check_server(there)
    private, public = site_key(tmp_path / "site", "hospital")
    with pytest.raises(httpx.HTTPStatusError) as error, site_connection(there.address, there.ca, private_key(private)):
        pass
    assert "rejects this site" in _join_error(there, public, error.value)  # the server has refused the request
    assert len(proxy) == 2 and all(request.startswith("CONNECT server.example:9092 ") for request in proxy)
    assert all("Proxy-Authorization: Basic bWU6c2VjcmV0" in request for request in proxy)  # base64 of me:secret


def test_a_proxy_that_intercepts_tls_is_detected(proxy, tmp_path):
    other = issue_certificates(tmp_path / "other", {"server.example"})
    with pytest.raises(FederationError, match="its certificate is not signed by"):
        check_server(ServerAddress("server.example:9092", other.ca))


def test_doctor_names_the_proxy_without_its_password(proxy, certificates):
    found = list(doctor_check("server.example:9092", certificates.ca))
    assert [one.level for one in found] == ["ok", "ok"]
    assert "through the proxy 127.0.0.1:" in found[0].detail
    assert "secret" not in found[0].detail


def test_a_proxy_that_does_not_speak_http_is_a_network_error(monkeypatch):
    def talk(caller):
        caller.sendall(b"220 mail.example\r\n")
        caller.close()

    with listening(talk) as port:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
        with pytest.raises(OSError):
            connect("server.example", 9092, 5)


def test_connections_on_this_machine_bypass_the_proxy(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert proxy_to("127.0.0.1") == "" and proxy_to("server.example") == "http://proxy.example:3128"
    environment = {"no_proxy": "intranet, 127.0.0.1", "NO_PROXY": "files"}
    bypass_proxy_for_localhost(environment)
    assert environment == dict.fromkeys(("no_proxy", "NO_PROXY"), "intranet,127.0.0.1,files,localhost,::1")
