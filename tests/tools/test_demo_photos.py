"""`make demo-photos` without a network."""

import demo_photos
from fedcopl.errors import DataError


def fails():
    raise DataError("https://example.org: cannot be fetched")


def test_all_download_errors_are_in_one_line():
    errors = demo_photos.download_errors([fails, lambda: None, fails])
    assert errors == "https://example.org: cannot be fetched | https://example.org: cannot be fetched"
    assert demo_photos.download_errors([lambda: None]) == ""


def test_without_a_network_it_ends_with_one_line_and_no_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo_photos, "download_dataset", lambda name, folder: fails())
    monkeypatch.setattr("sys.argv", ["demo_photos", "--data", str(tmp_path), "--backbone", "glyph-clip"])
    assert demo_photos.main() == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("copied by hand: https://example.org: cannot be fetched")
    assert list(tmp_path.iterdir()) == []
