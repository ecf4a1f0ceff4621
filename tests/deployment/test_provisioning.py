"""Packages of a study: made, installed, revoked, renewed; nothing is sent or started."""

import io
import stat
import zipfile
from dataclasses import replace
from datetime import date, timedelta

import pytest
from cryptography import x509

from fedcopl.deployment.keys import read_site_key, read_site_keys, site_key
from fedcopl.deployment.packages import (
    _METADATA,
    Package,
    _Expiry,
    _key_expiries,
    admitted_keys,
    expiries,
    install,
    installed_metadata,
    read_package,
)
from fedcopl.deployment.provision import (
    EXAMPLE,
    StudyFolder,
    _read_plan,
    _Register,
    prepare_study,
)
from fedcopl.deployment.site.policies import _approval_by_file
from fedcopl.doctor.checks import _check_expiry
from fedcopl.errors import ConfigError, FederationError, RunFolderError

DAY = date(2027, 1, 1)
STUDY = """
name = "digits"
address = ["server.example", "10.0.0.1"]
port = 1234
settings = "settings.toml"
key_days = 100
[sites]
hospital = "packed"
clinic = "own"
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    (root / "study.toml").write_text(STUDY)
    (root / "settings.toml").write_text("rounds = 7\n[train]\nepochs = 2\n[model]\nthreads = 1\n")
    (root / "classes.txt").write_text("cat\ndog\n")
    return prepare_study(root / "study.toml")


@pytest.fixture
def folder(tmp_path, written):
    return StudyFolder(tmp_path / "provisioned", written, DAY)


@pytest.fixture
def made(folder):
    return {package.metadata.name: package for package in folder.provision()}


def site_package(folder, name="hospital"):
    return read_package(folder.package(name), "site")


def test_a_package_contains_the_files_of_its_site_only(made, folder):
    package = site_package(folder)
    assert set(package.files) == {"package.json", "ca.pem", "classes.txt", "settings.toml", "site.key"}
    metadata = package.metadata
    assert (metadata.study, metadata.name, metadata.address) == ("digits", "hospital", "server.example:1234")
    assert metadata.settings == {"rounds": 7, "train.epochs": 2}  # each site sets its own threads
    assert metadata.key_expires == date(2027, 4, 11)  # 31 - 1 + 28 + 31 days to 31 March are 89 of 100; 11 more
    assert metadata.classes.startswith("2 classes, ") and metadata.model.startswith("glyph-clip ")
    assert "site.key" not in site_package(folder, "clinic").files  # makes its own
    assert {name: made[name].is_secret for name in made} == {"hospital": True, "clinic": False, "server": True}


def test_a_site_can_agree_to_the_settings_of_its_package(made, written, folder, tmp_path):
    install(folder.package("hospital"), tmp_path / "home", "site")
    agreed = _approval_by_file(tmp_path / "home" / "settings.toml")
    assert agreed("run", written.config) is None
    other = written.config.model_copy(update={"rounds": 8})
    assert "this site has accepted other settings: rounds" in agreed("run", other)


def test_only_the_owner_can_read_packages(made, folder):
    for name in made:
        assert stat.S_IMODE(folder.package(name).stat().st_mode) == 0o600
    assert b"".join(read_package(folder.package("server"), "server").files.values()).count(b"OPENSSH PRIVATE") == 0
    assert "ca.key" not in read_package(folder.package("server"), "server").files  # it stays with the operator


def test_the_servers_certificate_is_for_the_addresses_of_the_study(made, folder):
    files = read_package(folder.package("server"), "server").files
    certificate = x509.load_pem_x509_certificate(files["server.pem"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"server.example", "localhost"}
    assert {str(ip) for ip in names.get_values_for_type(x509.IPAddress)} == {"10.0.0.1", "127.0.0.1", "::1"}
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(files["ca.pem"]))


def test_provisioning_again_gives_the_same_packages(made, folder):
    again = {package.metadata.name: package for package in replace(folder, today=DAY + timedelta(days=9)).provision()}
    assert again == made


def test_a_deleted_package_is_made_again_without_its_key(made, folder, tmp_path):
    home = tmp_path / "home"
    install(folder.package("hospital"), home, "site")
    kept = (home / "site.key").read_bytes()
    folder.package("hospital").unlink()
    folder.provision()
    install(folder.package("hospital"), home, "site")
    assert (home / "site.key").read_bytes() == kept
    with pytest.raises(FederationError, match=r"has no key of hospital.*--renew hospital"):
        install(folder.package("hospital"), tmp_path / "elsewhere", "site")


def test_a_site_joins_with_the_key_of_its_package(made, folder, tmp_path):
    install(folder.package("hospital"), tmp_path / "home", "site")
    install(folder.package("server"), tmp_path / "federation", "server")
    _, public = site_key(tmp_path / "home", "hospital")
    assert read_site_keys(tmp_path / "federation" / "sites") == {"hospital": read_site_key(public)}


def test_the_key_that_a_site_made_is_admitted(made, folder, tmp_path):
    home, server = tmp_path / "clinic", tmp_path / "federation"
    install(folder.package("clinic"), home, "site")
    folder.admit(site_key(home, "clinic")[1])
    install(folder.package("server"), server, "server")
    assert set(read_site_keys(server / "sites")) == {"hospital", "clinic"}
    site_key(tmp_path / "other", "clinic")
    with pytest.raises(FederationError, match="clinic: already has another key; first: --renew clinic"):
        folder.admit(tmp_path / "other" / "site.pub")


def test_an_unknown_key_is_not_admitted(made, folder, tmp_path):
    for name in ("stranger", "hospital"):
        _, public = site_key(tmp_path / name, name)
        with pytest.raises(FederationError, match=f"the study's plan has no site {name} = 'own'"):
            folder.admit(public)


def test_a_revoked_site_is_locked_out_until_it_is_renewed(made, folder, tmp_path):
    server = tmp_path / "federation"
    install(folder.package("server"), server, "server")
    old = read_site_keys(server / "sites")["hospital"].digest
    folder.revoke("hospital")
    install(folder.package("server"), server, "server")
    assert read_site_keys(server / "sites") == {}
    assert not folder.package("hospital").exists()
    folder.provision()  # does not issue a key for it
    assert "hospital" not in _Register.read(folder.path).keys
    folder.renew("hospital")
    install(folder.package("server"), server, "server")
    assert read_site_keys(server / "sites")["hospital"].digest != old
    with pytest.raises(FederationError, match="nobody: has no key to revoke; sites with a key: clinic, hospital"):
        folder.revoke("nobody")


def test_a_revoked_own_key_is_not_admitted_again(made, folder, tmp_path):
    _, public = site_key(tmp_path / "clinic", "clinic")
    folder.admit(public)
    folder.renew("clinic")
    with pytest.raises(FederationError, match="this key was renewed on 2027-01-01; the site has to make a new key"):
        folder.admit(public)


def test_a_renewed_key_replaces_the_old_one_at_the_site(made, folder, tmp_path):
    home = tmp_path / "home"
    install(folder.package("hospital"), home, "site")
    (home / "site.secret").write_bytes(b"stays")
    old = (home / "site.key").read_bytes()
    replace(folder, today=DAY + timedelta(days=50)).renew("hospital")
    install(folder.package("hospital"), home, "site")
    assert (home / "site.key").read_bytes() != old
    assert (home / "site.secret").read_bytes() == b"stays"
    assert installed_metadata(home).key_expires == date(2027, 5, 31)  # 50 days later than 11 April


def test_a_site_with_a_key_of_its_own_makes_another_when_it_is_renewed(made, folder, tmp_path):
    home = tmp_path / "clinic"
    install(folder.package("clinic"), home, "site")
    site_key(home, "clinic")
    folder.renew("clinic")
    install(folder.package("clinic"), home, "site")
    assert not (home / "site.key").exists()


def test_certificates_are_renewed_and_old_sites_still_trust_the_server(made, folder):
    before = read_package(folder.package("server"), "server").files
    folder.renew("server")
    folder.renew("authority")
    after = read_package(folder.package("server"), "server").files
    assert before["server.pem"] != after["server.pem"] and before["ca.pem"] != after["ca.pem"]
    for ca in (before["ca.pem"], after["ca.pem"]):
        x509.load_pem_x509_certificate(after["server.pem"]).verify_directly_issued_by(
            x509.load_pem_x509_certificate(ca)
        )
    with pytest.raises(ConfigError, match="--renew: 'x' is neither a site of the study nor 'server' or 'authority'"):
        folder.renew("x")


def test_a_key_is_valid_until_its_last_day(made, folder, tmp_path):
    sites = tmp_path / "federation" / "sites"
    install(folder.package("server"), sites.parent, "server")
    assert _key_expiries(sites) == {"hospital": date(2027, 4, 11)}
    assert set(admitted_keys(sites, date(2027, 4, 11))) == {"hospital"}
    assert admitted_keys(sites, date(2027, 4, 12)) == {}
    (sites / "expiry.json").unlink()  # a folder without a study: keys have no end
    assert set(admitted_keys(sites, date(2099, 1, 1))) == {"hospital"}


def test_doctor_warns_a_month_before_and_finds_what_has_ended(made, folder, tmp_path, monkeypatch):
    home = tmp_path / "home"
    install(folder.package("hospital"), home, "site")

    def levels(day):
        monkeypatch.setattr("fedcopl.deployment.packages.today_utc", lambda: day)
        return {one.subject: one.level for one in _check_expiry(home)}

    assert levels(date(2027, 3, 11)) == {"authority": "ok", "key of this site": "ok"}
    assert levels(date(2027, 3, 12))["key of this site"] == "note"
    assert levels(date(2027, 4, 12))["key of this site"] == "problem"
    (home / "ca.pem").write_text("no certificate")
    assert levels(date(2027, 3, 11)) == {"keys and certificates": "problem"}


def test_the_text_of_an_expiry(monkeypatch):
    monkeypatch.setattr("fedcopl.deployment.packages.today_utc", lambda: date(2027, 1, 1))
    assert str(_Expiry("key", date(2027, 1, 31), "")) == "valid until 2027-01-31, 30 days"
    assert str(_Expiry("key", date(2026, 12, 31), "")) == "expired after 2026-12-31"


def test_status_shows_when_keys_expire(made, folder, tmp_path):
    install(folder.package("server"), tmp_path / "federation", "server")
    assert [one.subject for one in expiries(tmp_path / "federation")] == [
        "authority",
        "server's certificate",
        "key of hospital",
    ]


def test_a_folder_belongs_to_one_site(made, folder, tmp_path):
    install(folder.package("hospital"), tmp_path / "home", "site")
    with pytest.raises(
        FederationError, match="is the folder of hospital in the study digits, and the package is for cl"
    ):
        install(folder.package("clinic"), tmp_path / "home", "site")
    with pytest.raises(FederationError, match="is the package of a server, not of a site"):
        install(folder.package("server"), tmp_path / "home", "site")


def archive(packed=zipfile.ZIP_STORED, **files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packed) as made:
        for name, content in files.items():
            made.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


BAD = {
    "no archive": b"PK, but no archive",
    "nothing in it": archive(),
    "a path outside": archive(**{"..__..__etc__passwd": "x"}),
    "a key with a path outside": archive(**{"sites__.._x.pub": "x"}),
    "a huge file": archive(zipfile.ZIP_DEFLATED, **{"classes.txt": "x" * 5_000_000}),
    "another compression": archive(zipfile.ZIP_BZIP2, **{"classes.txt": "x" * 3_000_000}),
    "invalid metadata": archive(**{_METADATA: "{}"}),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_packages_are_untrusted(tmp_path, content):
    (tmp_path / "x.fedcopl").write_bytes(content)
    with pytest.raises(FederationError, match=r"x\.fedcopl: is not a package of `fedcopl provision`"):
        install(tmp_path / "x.fedcopl", tmp_path / "home", "site")
    assert not (tmp_path / "home").exists()


def many_keys(number, size):
    return archive(zipfile.ZIP_DEFLATED, **{f"sites__{place}.pub": "x" * size for place in range(number)})


LARGE = {
    "one file": (BAD["a huge file"], "'classes.txt' would unpack to 5,000,000 bytes, more than 4,000,000"),
    "one key": (many_keys(1, 10_001), "'sites/0.pub' would unpack to 10,001 bytes, more than 10,000"),
    "all files": (many_keys(2_001, 10_000), "it would unpack to 20,010,000 bytes, more than 20,000,000"),
    "too many": (many_keys(10_001, 0), "it has more than 10,000 files, or a duplicate file"),
    "the file itself": (b"PK" * 10_000_001, "it is larger than 20,000,000 bytes"),
}


@pytest.mark.parametrize(("content", "words"), LARGE.values(), ids=LARGE)
def test_a_small_package_that_unpacks_to_much_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, content, words):
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("it was unpacked"))
    (tmp_path / "x.fedcopl").write_bytes(content)
    with pytest.raises(FederationError) as refused:
        install(tmp_path / "x.fedcopl", tmp_path / "home", "site")
    assert str(refused.value) == f"{tmp_path / 'x.fedcopl'}: is not a package of `fedcopl provision`: {words}"


def test_an_incomplete_package_is_named(made, folder, tmp_path):
    package = site_package(folder)
    incomplete = Package(package.metadata, {_METADATA: package.files[_METADATA]})
    (tmp_path / "x.fedcopl").write_bytes(incomplete.to_bytes())
    with pytest.raises(FederationError, match=r"is incomplete: ca\.pem is missing"):
        install(tmp_path / "x.fedcopl", tmp_path / "home", "site")


def test_the_example_is_a_plan(tmp_path):
    (tmp_path / "study.toml").write_text(EXAMPLE)
    assert _read_plan(tmp_path / "study.toml").sites == {"hospital": "packed", "clinic": "own"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('name = "a b"', "name: should be made of letters, digits, dots, dashes and underscores, not 'a b'"),
        ("address = []", "address: should be not empty"),
        ('address = "server.example"', """address: should be a list, as ["a", "b"], not 'server.example'"""),
        ('address = ["https://a:1"]', "address: 'https://a:1' is not a host name or IP address; write it as"),
        ("port = 0", "port: should be at least 1, not 0"),
        ('port = "x"', "port: should be a whole number, not 'x'"),
        ('adress = ["a"]', "adress: a study has no such setting; did you mean address?"),
        ('sites = {a = "maybe"}', "sites.a: should be packed or own, not 'maybe'"),
        ('sites = {server = "own"}', "no site can be called 'server'; rename it"),
        ('sites = {" x" = "own"}', "' x' must have 1 to 60 printable characters, no space at its ends"),
        ("color = 3", "color: a study has no such setting"),
    ],
)
def test_an_error_in_a_plan_is_named(tmp_path, line, message):
    plan = {"name": 'name = "a"', "address": 'address = ["a"]', "sites": 'sites = {a = "own"}'}
    plan[line.split()[0]] = line
    (tmp_path / "study.toml").write_text("\n".join(plan.values()))
    with pytest.raises(ConfigError, match=r"study\.toml: ") as error:
        _read_plan(tmp_path / "study.toml")
    assert message in str(error.value)


def test_all_errors_of_a_plan_are_named_at_once(tmp_path):
    (tmp_path / "study.toml").write_text("port = 1")
    with pytest.raises(ConfigError, match="name: is missing; address: is missing; sites: is missing"):
        _read_plan(tmp_path / "study.toml")


def test_a_missing_plan_names_the_command_that_writes_one(tmp_path):
    with pytest.raises(ConfigError, match=r"no such study plan; fedcopl provision .*study\.toml --example writes one"):
        _read_plan(tmp_path / "study.toml")


def test_a_missing_or_incomplete_package_is_named(made, folder, tmp_path):
    with pytest.raises(FederationError, match=r"x\.fedcopl: there is no such package"):
        install(tmp_path / "x.fedcopl", tmp_path / "home", "site")
    half = folder.package("hospital").read_bytes()[:700]
    (tmp_path / "x.fedcopl").write_bytes(half)
    with pytest.raises(FederationError, match="or an incomplete one: ask for it again"):
        install(tmp_path / "x.fedcopl", tmp_path / "home", "site")


def test_a_folder_with_damaged_metadata_is_usable_again_as_its_error_advises(made, folder, tmp_path):
    home = tmp_path / "home"
    install(folder.package("hospital"), home, "site")
    (home / "package.json").write_text("{")
    with pytest.raises(FederationError, match=r"package\.json: is damaged; delete it and install the last package"):
        install(folder.package("hospital"), home, "site")
    (home / "package.json").unlink()
    install(folder.package("hospital"), home, "site")
    assert installed_metadata(home).name == "hospital"


def test_a_package_with_damaged_contents_is_named(tmp_path):
    """Found by fuzzing: the directory of the archive is valid, the first compressed byte is not."""
    with zipfile.ZipFile(tmp_path / "x.fedcopl", "w") as archive:
        archive.writestr(zipfile.ZipInfo("package.json"), b"{} " * 99, zipfile.ZIP_DEFLATED)
    content = bytearray((tmp_path / "x.fedcopl").read_bytes())
    content[30 + len("package.json")] = 0xFF  # behind the local header, of 30 bytes and the name
    (tmp_path / "x.fedcopl").write_bytes(content)
    with pytest.raises(FederationError, match="or an incomplete one: ask for it again"):
        install(tmp_path / "x.fedcopl", tmp_path / "home", "site")


def test_the_error_of_a_package_of_the_other_kind_names_its_command(made, folder, tmp_path):
    with pytest.raises(FederationError, match=r"package of a site, not of a server; install it with fedcopl join"):
        install(folder.package("hospital"), tmp_path / "home", "server")


def test_a_file_cannot_be_the_folder_of_a_site(made, folder, tmp_path):
    (tmp_path / "home").write_text("")
    with pytest.raises(RunFolderError, match="home: is a file, not a folder"):
        install(folder.package("hospital"), tmp_path / "home", "site")
