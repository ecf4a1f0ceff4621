"""`make demo-photos` where nothing can be fetched."""

import demo_photos
from fedcopl.errors import DataError


def fails():
    raise DataError("https://example.org: cannot be fetched")


def test_all_that_is_missing_is_said_in_one_line():
    said = demo_photos.what_is_missing([fails, lambda: None, fails])
    assert said == "https://example.org: cannot be fetched | https://example.org: cannot be fetched"
    assert demo_photos.what_is_missing([lambda: None]) == ""


def test_without_a_network_it_ends_with_one_line_and_no_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo_photos, "download_dataset", lambda name, folder: fails())
    monkeypatch.setattr("sys.argv", ["demo_photos", "--data", str(tmp_path), "--backbone", "glyph-clip"])
    assert demo_photos.main() == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("by hand: https://example.org: cannot be fetched")
    assert list(tmp_path.iterdir()) == []
