"""The lines that the process of a site prints."""

from pathlib import Path
from types import SimpleNamespace

import httpx
from PIL import Image

from deployment.toolbox import NotingReporter
from fedcopl.deployment.site.running_site import RunningSite, SiteOptions
from fedcopl.deployment.site.site_process import ServerAddress, SiteReporter


def request(kind, number):
    return SimpleNamespace(metadata=SimpleNamespace(message_type=f"query.{kind}", group_id=str(number)))


def test_repeated_requests_are_reported_in_one_line():
    reporter = NotingReporter()
    site_reporter = SiteReporter(reporter, ServerAddress("server:1", Path("ca.pem")))
    for kind, refused in [("adapt", False)] * 40 + [("estimate", False)] * 2 + [("adapt", True)]:
        site_reporter.replied(request(kind, 1), 0.25, refused=refused)
    assert reporter.notes == [
        "round 1: adapt replied; further prior-estimation requests are not logged individually",
        "round 1: estimate replied in 0.2 s",
        "round 1: estimate replied in 0.2 s",
        "round 1: adapt refused",
    ]


def test_a_server_that_ends_after_a_run_is_not_an_error():
    reporter, away = NotingReporter(), httpx.ConnectError("refused")
    site_reporter = SiteReporter(reporter, ServerAddress("server:1", Path("ca.pem")))
    for error, finished in [(None, None), (None, Path("site/runs/a b")), (away, None), (None, None), (away, None)]:
        site_reporter.check(SimpleNamespace(error=error))
        if error is None:
            site_reporter.replied(request("evaluate", 1), 0.25, finished, refused=False)
    replied = "round 1: evaluate replied in 0.2 s"
    finished = (
        "the run is finished; this site's classifier is in site/runs/a b; label images with: fedcopl predict IMAGES "
        "--classifier 'site/runs/a b' --out labels.csv; this site waits for the next run, Ctrl-C stops it"
    )
    connected, missed = "connected to server:1", "no server at server:1; trying again until there is one"
    assert reporter.notes == [connected, replied, replied, finished, connected, replied, missed]


def test_a_class_name_too_long_for_default_prompts_is_reported(tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "images/0.png")
    (tmp_path / "classes.txt").write_text("cat\n" + "dog " * 12)  # fits into 40 tokens, but not beside 16 of a prompt
    reporter = NotingReporter()
    options = SiteOptions("a", tmp_path / "images", str(tmp_path / "classes.txt"), tmp_path / "home", {"threads": 1})
    RunningSite(options, reporter)
    [line] = [line for line in reporter.notes if "tokens" in line]
    assert "and 16 context vectors are more than the 40 tokens of glyph-clip" in line
    assert line.endswith("A run with the default of this setting will be refused")
