"""`fedcopl export`: a run's classifiers as folders that can be handed on."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ..errors import ConfigError, FedCoPLError

if TYPE_CHECKING:
    from ..predict.classifier import Classifier
    from ..predict.loading import FinishedRun


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; it must be new.", show_default=False)],
    client: Annotated[str | None, typer.Option(help="Whose classifier.", show_default=False)] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Every client's, each in a folder of its own.")] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also as ONNX, checked against torch.")] = False,
    with_backbone: Annotated[
        bool, typer.Option("--with-backbone", help="Put the CLIP model's files into the folder.")
    ] = False,
    share: Annotated[
        float, typer.Option("--abstain-share", min=0, max=1, help="Share of the site's own images to get no label.")
    ] = 0.05,
    backbone: Annotated[
        str | None, typer.Option(help="Where the CLIP model lies now, if not where the run had it.", show_default=False)
    ] = None,
) -> None:
    """Write classifiers as safetensors with a model card, and their thresholds from each site's own images."""
    from ..predict.export import export as write
    from ..predict.loading import FinishedRun
    from ..run.folder import file_name

    if everyone and client is not None:
        raise ConfigError("--all exports every client; leave out --client")
    opened = FinishedRun(run, backbone=backbone, device="cpu")
    names = opened.clients if everyone else [opened.choose(client)]
    folders = [out / file_name(name) if everyone else out for name in names]
    classifiers = _measured(opened, names, share)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for classifier, folder in zip(classifiers, folders, strict=True):
        written = write(classifier, folder, onnx=onnx, with_backbone=with_backbone)
        console.print(str(written.folder))
        if written.onnx:
            console.print(
                f"  ONNX agrees with torch: logits differ by at most {written.onnx.logits:.1e}, "
                f"probabilities by {written.onnx.probabilities:.1e}"
            )


def _measured(opened: "FinishedRun", names: list[str], share: float) -> Iterator["Classifier"]:
    """With each one's threshold, where the run's images can still be read."""
    from ..predict.thresholds import OwnImages

    try:
        images = OwnImages(opened)
    except FedCoPLError as error:
        note = f"note: no threshold is measured, because the images of the run cannot be read: {error}"
        Console(stderr=True).print(note, highlight=False, markup=False, soft_wrap=True)
        return (opened.classifier(name) for name in names)
    return (images.classifier(name, share) for name in names)
