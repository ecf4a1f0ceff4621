"""`fedcopl drift`: whether a site's recent images are still those its classifier was made for."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .classifier import BackboneOption, ClientOption, Device, Folder
from .command import PluginFiles

if TYPE_CHECKING:
    from ..classifier.drift import DriftReport

WORDS = {
    "mix": "the mix of classes is apart by",
    "doubt": "images it is unsure of, where 5 % were before",
    "looks": "distances to what classes look like are apart by",
}


def drift(
    recent: Annotated[list[str], typer.Argument(help="Recent images, and folders of them.", show_default=False)],
    classifier: Folder,
    before: Annotated[
        list[str], typer.Option(help="The images it was made with, or a folder of them; again for more.")
    ],
    client: ClientOption = None,
    backbone: BackboneOption = None,
    device: Device = "auto",
    plugin: PluginFiles = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell without labels whether recent images differ from those of before, and whether a new run is worth it."""
    from ..classifier.drift import compare_streams
    from ..classifier.loading import load
    from ..classifier.predictions import pictures_at, refuse_missing

    refuse_missing([*before, *recent])  # what is wrong is said before the model is loaded
    loaded = load(classifier, client=client, backbone=backbone, device=device)
    earlier, later = (pictures_at(paths, [], loaded.recipe.reading) for paths in (before, recent))
    report = compare_streams(loaded, earlier, later)
    print(json.dumps({**asdict(report), "advice": report.advice}) if as_json else "\n".join(_in_words(report)))
    if report.has_changed:
        raise typer.Exit(1)


def _in_words(report: "DriftReport") -> list[str]:
    lines = [f"{'images':<10}{report.before:,} before, {report.recent:,} recent"]
    for one in report.changes:
        found = "CHANGED" if one.is_change else "as before"
        lines.append(f"{one.what:<10}{found:<10} {WORDS[one.what]} {one.size:.0%} (by chance: {one.chance:.3f})")
    if any(one.what == "mix" and one.is_change for one in report.changes):
        lines += [f"{'':<10}{name}: {share:+.0%} of the images" for name, share in report.moved]
    return [*lines, report.advice]
