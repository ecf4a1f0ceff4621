"""Addresses: how a server connects to itself, and which requests come from its own machine."""

from ipaddress import ip_address

import pytest
from cryptography import x509

from fedcopl.deployment.addresses import is_this_machine, own_address, own_ip_addresses, with_port
from fedcopl.deployment.flower_internals.superlink import _LocalOnly
from fedcopl.deployment.keys import given_certificates, server_certificates
from fedcopl.errors import ConfigError, FederationError


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("0.0.0.0", "127.0.0.1:9092"),
        ("127.0.0.2", "127.0.0.2:9092"),
        ("192.168.1.5", "192.168.1.5:9092"),
        ("::", "[::1]:9092"),
        ("::1", "[::1]:9092"),
        ("2001:db8::5", "[2001:db8::5]:9092"),
        ("server.example", "server.example:9092"),
    ],
)
def test_own_address_of_a_listening_address(host, reached):
    assert with_port(own_address(host), 9092) == reached


@pytest.mark.parametrize(
    ("host", "client", "is_local"),
    [
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "192.168.1.5", False),  # may be another machine
        ("::", "::1", True),
        ("::", "::ffff:127.0.0.1", True),
        ("::", "::ffff:192.168.1.5", False),
        ("192.168.1.5", "192.168.1.5", True),
        ("192.168.1.5", "::ffff:192.168.1.5", True),
        ("192.168.1.5", "192.168.1.6", False),
        ("2001:db8::5", "2001:db8::5", True),
        ("2001:db8::5", "2001:db8::6", False),
        ("localhost", "127.0.0.1", True),
        ("127.0.0.2", "not an address", False),
    ],
)
def test_only_this_machine_reaches_control_and_runtime(host, client, is_local):
    own = own_ip_addresses(host)
    assert is_this_machine(client, own) is is_local
    guard = _LocalOnly(None, own)
    assert guard.allows({"path": "/v1/runtime/acquire-task", "client": (client, 5000)}) is is_local
    assert guard.allows({"path": "/v1/fleet/pull-messages", "client": (client, 5000)}) is True


def names_in(certificate):
    made = x509.load_pem_x509_certificate(certificate.read_bytes())
    return made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_a_certificate_may_have_internationalised_names(tmp_path):
    made = server_certificates(tmp_path, ["bücher.example", "2001:db8::5"])
    named = names_in(made.certificate)
    assert "xn--bcher-kva.example" in named.get_values_for_type(x509.DNSName)  # as registered, RFC 3492
    assert ip_address("2001:db8::5") in named.get_values_for_type(x509.IPAddress)
    before = made.certificate.read_bytes()
    assert server_certificates(tmp_path, ["bücher.example"]).certificate.read_bytes() == before


@pytest.mark.parametrize(
    "address", ["server.example:9092", "https://server.example", "a..b", "", "x" * 64, "two words"]
)
def test_an_invalid_address_is_refused_before_anything_is_written(tmp_path, address):
    with pytest.raises(ConfigError, match=r"--address: .* is not a host name or IP address"):
        server_certificates(tmp_path / "new", [address])
    assert not (tmp_path / "new").exists()


def test_a_given_certificate_is_for_the_address_that_is_listened_on(tmp_path):
    made = server_certificates(tmp_path, ["192.0.2.7"])
    assert given_certificates(made.ca, made.certificate, made.key, "192.0.2.7") == made
    with pytest.raises(FederationError, match=r"and name 192\.0\.2\.8"):
        given_certificates(made.ca, made.certificate, made.key, "192.0.2.8")
