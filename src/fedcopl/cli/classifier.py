"""`fedcopl predict` and `fedcopl export`: labels for new images, and classifiers as folders that can be handed on."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from ..errors import ConfigError, DataError, FedCoPLError, Interrupted
from ..files import check_output_file, check_output_folder
from ..plurals import counted
from .command import PluginFiles
from .show import print_next

if TYPE_CHECKING:
    from ..classifier.loading import FinishedRun
    from ..classifier.predict import Classifier
    from ..classifier.prediction_file import Tally


EVERY = 10_000  # images between two lines, where nobody looks at a terminal


ImagesArgument = Annotated[list[str], typer.Argument(help="Images, and folders of images.", show_default=False)]
Folder = Annotated[
    Path, typer.Option("--classifier", "-c", help="Folder of `fedcopl export`, or of a run.", show_default=False)
]
FolderOrNone = Annotated[
    Path | None,
    typer.Option(
        "--classifier", "-c", help="Folder of `fedcopl export`, or of a run; or --zero-shot.", show_default=False
    ),
]
ZeroShotFlag = Annotated[
    bool, typer.Option("--zero-shot", help="Plain CLIP with the classes of --classes, without a run.")
]
ClassesFile = Annotated[Path | None, typer.Option(help="For --zero-shot: class names, one a line.", show_default=False)]
PHOTO_MODEL = "ViT-B/32"  # of --zero-shot where --backbone names none
MOST_CLASSES = 20  # whose counts are printed
OutOption = Annotated[str, typer.Option("--out", "-o", help="File for the answers, .csv or .jsonl; - prints them.")]
ClientOption = Annotated[
    str | None, typer.Option(help="Whose classifier, where the folder is a run's.", show_default=False)
]
Top = Annotated[int, typer.Option(min=0, help="How many of the most probable classes to name.")]
BELOW = "Give no label below this probability; without it, the classifier's own threshold."
Below = Annotated[float | None, typer.Option("--abstain-below", min=0, max=1, help=BELOW, show_default=False)]
SHARE = "The same, as a share of the images of the classifier's own site."
ShareOption = Annotated[float | None, typer.Option("--abstain-share", min=0, max=1, help=SHARE, show_default=False)]
FormOption = Annotated[
    str | None, typer.Option("--format", help="csv or jsonl, whatever the file is called.", show_default=False)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a finished file.")]
BackboneOption = Annotated[
    str | None, typer.Option(help="Where the CLIP model lies, if it is not known by name.", show_default=False)
]
PRIOR = (
    "In what mix the classes occur: as at its site (site), as at all sites together (none), as the images to be "
    "labelled themselves show (images; they are read twice), or a FILE: a table `class,share`, or JSON."
)
PriorOption = Annotated[str, typer.Option("--prior", help=PRIOR, metavar="site|none|images|FILE")]
EXPORTED_PRIOR = (
    "For what mix of classes it answers: its site's (site), that of all sites together (none; the site's own then "
    "stays at home), or a FILE: a table `class,share`, or JSON."
)
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]


def predict(
    images: ImagesArgument,
    classifier: FolderOrNone = None,
    zero_shot: ZeroShotFlag = False,
    classes: ClassesFile = None,
    out: OutOption = "-",
    client: ClientOption = None,
    top: Top = 3,
    threshold: Below = None,
    share: ShareOption = None,
    form: FormOption = None,
    overwrite: Overwrite = False,
    prior: PriorOption = "site",
    backbone: BackboneOption = None,
    device: Device = "auto",
    plugin: PluginFiles = None,
) -> None:
    """Label images. A run that was stopped goes on when the same command is given again."""
    _refuse_sources(classifier, zero_shot, classes)
    if out != "-":
        check_output_file(Path(out), overwrite=overwrite)
    from ..classifier.prediction_file import choose_rows, label_to_file, label_to_stream
    from ..classifier.predictions import pictures_at, refuse_missing
    from ..classifier.prior import CHOICES, IMAGES, shares_for

    rows = choose_rows(out, form, top)
    refuse_missing(images)  # before the model is loaded
    shares = shares_for(prior, (*CHOICES, IMAGES))
    loaded = _load(classifier, classes, client, backbone, device)
    limit = threshold if share is None else _threshold_of(share, loaded.recipe.confidence, threshold)
    try:
        if prior == IMAGES:
            print("looking at all images, to find out in what mix the classes occur", file=sys.stderr)
            loaded = loaded.fitted_to(pictures_at(images, [], loaded.recipe.reading))
        loaded = _for_mix(loaded, prior, shares)
        with _progress() as progress:
            if out == "-":
                tally = label_to_stream(loaded, images, rows, limit, sys.stdout, progress)
            else:
                tally = label_to_file(loaded, images, rows, limit, Path(out), progress, overwrite=overwrite)
    except KeyboardInterrupt as error:
        how = "" if out == "-" else "; the same command goes on where it was"
        raise Interrupted(f"stopped{how}") from error
    print(_summary(tally, out), file=sys.stderr)
    print_next(("fedcopl", *_next(classifier, loaded, images)))


def _next(folder: Path | None, loaded: "Classifier", images: list[str]) -> tuple[object, ...]:
    """What follows plain CLIP, a classifier of a run, and an exported one."""
    if folder is None:
        return "new", "STUDY"
    if (folder / "settings.toml").is_file():
        return "export", folder, "--client", loaded.recipe.about["client"], "-o", "classifier"
    return "drift", "LATER_PHOTOS", "-c", folder, "--before", images[0]


def _refuse_sources(classifier: Path | None, zero_shot: bool, classes: Path | None) -> None:
    if zero_shot and (classes is None or classifier is not None):
        raise ConfigError("--zero-shot: needs --classes FILE, one name a line, and no --classifier")
    if not zero_shot and classifier is None:
        raise ConfigError("--classifier: is missing; name an export or a run, or use --zero-shot --classes FILE")
    if not zero_shot and classes is not None:
        raise ConfigError("--classes: is for --zero-shot; a classifier has its own classes")


def _load(
    folder: Path | None, classes: Path | None, client: str | None, backbone: str | None, device: str
) -> "Classifier":
    """Load the classifier of a folder, or plain CLIP where there is only a list of classes."""
    from ..classifier.loading import load, zero_shot

    if folder is not None:
        return load(folder, client=client, backbone=backbone, device=device)
    assert classes is not None
    return zero_shot(classes, backbone or PHOTO_MODEL, device)


def _for_mix(loaded: "Classifier", prior: str, shares: Mapping[str, object] | None) -> "Classifier":
    """The classifier for the mix that --prior means: by a word, or by the shares of its file."""
    from ..data.label_files import class_prior_of

    if shares is not None:
        return loaded.with_class_prior(class_prior_of(shares, loaded.recipe.classes, prior))
    return loaded.with_prior("none") if prior == "none" else loaded


def _threshold_of(share: float, confidence: object, threshold: float | None) -> float:
    from ..classifier.recipe import Confidence

    if threshold is not None:
        raise DataError("--abstain-share and --abstain-below say the same thing in two ways: give one of them")
    if not isinstance(confidence, Confidence):
        raise DataError("--abstain-share: this classifier has not measured its own site's images; export it first")
    return confidence.threshold(share)


def _summary(tally: "Tally", out: str) -> str:
    images = tally.resumed + tally.images
    parts = [counted(images, "image")]
    if tally.resumed:
        parts.append(f"{tally.resumed:,} of them before a stop")
    if tally.abstained:
        parts.append(f"{tally.abstained:,} without a label")
    if tally.broken:
        parts.append(f"{tally.broken:,} that cannot be read")
    if tally.first_passed_over:
        name, why = tally.first_passed_over
        parts.append(f"{counted(tally.passed_over, 'other file')} passed over, for example {name!r}: {why}")
    if tally.unsure:
        parts.append(f"{tally.unsure:,} unsure: no class reaches 50 %")
    classes = [f"{name}: {count:,}" for name, count in tally.labels.most_common(MOST_CLASSES)]
    if len(tally.labels) > MOST_CLASSES:
        classes.append(f"and {len(tally.labels) - MOST_CLASSES} more classes")
    return ", ".join(parts) + ("" if out == "-" else f" -> {out}") + "\n" + ", ".join(classes)


@contextmanager
def _progress() -> Iterator[Callable[["Tally"], None]]:
    """A count that moves on a terminal, a line now and then anywhere else."""
    console, began = Console(stderr=True), time.monotonic()

    def summary(tally: "Tally") -> str:
        each = tally.images / max(time.monotonic() - began, 1e-9)
        return f"{counted(tally.resumed + tally.images, 'image')}, {each:,.0f} a second"

    if console.is_terminal:
        with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as bar:
            task = bar.add_task("loading")
            yield lambda tally: bar.update(task, description=summary(tally))
        return
    lines = 0

    def line(tally: "Tally") -> None:
        nonlocal lines
        if tally.images // EVERY > lines:
            lines = tally.images // EVERY
            print(summary(tally), file=sys.stderr)

    yield line


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
    prior: Annotated[str, typer.Option("--prior", help=EXPORTED_PRIOR, metavar="site|none|FILE")] = "site",
    plugin: PluginFiles = None,
) -> None:
    """Write classifiers as safetensors with a model card, and their thresholds from each site's own images."""
    if everyone and client is not None:
        raise ConfigError("--all exports every client; leave out --client")
    check_output_folder(out, new=not everyone)
    from ..classifier.export import export as write
    from ..classifier.loading import FinishedRun
    from ..classifier.onnx_export import onnx_libraries
    from ..classifier.prior import shares_for
    from ..run.folder import file_name

    if onnx:
        onnx_libraries()  # before all the work, not after it
    shares = shares_for(prior)
    opened = FinishedRun(run, backbone=backbone, device="cpu")
    names = opened.clients if everyone else [opened.choose(client)]
    folders = [out / file_name(name) if everyone else out for name in names]
    for folder in folders:
        check_output_folder(folder, new=True)
    classifiers = _measured(opened, names, share)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for classifier, folder in zip(classifiers, folders, strict=True):
        meant = _for_mix(classifier, prior, shares)
        written = write(meant, folder, onnx=onnx, with_backbone=with_backbone)
        console.print(str(written.folder))
        if written.onnx:
            console.print(
                f"  ONNX agrees with torch: logits differ by at most {written.onnx.logits:.1e}, "
                f"probabilities by {written.onnx.probabilities:.1e}"
            )
    print_next(("fedcopl", "predict", "PHOTOS", "-c", folders[0], "-o", "answers.csv"))


def _measured(opened: "FinishedRun", names: list[str], share: float) -> Iterator["Classifier"]:
    """With each one's threshold, where the run's images can still be read."""
    from ..classifier.loading import OwnImages

    opened.classifier(names[0])  # what is wrong with the classifier itself is no matter of images
    try:
        images = OwnImages(opened)
    except FedCoPLError as error:
        note = f"note: no threshold is measured, because the images of the run cannot be read: {error}"
        Console(stderr=True).print(note, highlight=False, markup=False, soft_wrap=True)
        return (opened.classifier(name) for name in names)
    return (images.classifier(name, share) for name in names)
