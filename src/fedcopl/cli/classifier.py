"""`fedcopl predict`, `export` and `drift`: label images, export classifiers, and test images for a shift."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from typer import Argument, Option

from ..errors import ConfigError, DataError, FedCoPLError, Interrupted, RunFolderError
from ..files import check_output_file, check_output_folder, no_folder
from ..plurals import counted
from .command import PluginFiles
from .show import print_next

if TYPE_CHECKING:
    from ..classifier.loading import FinishedRun
    from ..classifier.predict import Classifier
    from ..classifier.prediction_file import LabellingProgress

_ZERO_SHOT_MODEL = "ViT-B/32"  # of --zero-shot without --backbone
_MAX_CLASSES = 20  # classes with printed counts
_LINE_EVERY = 10_000  # images between two progress lines without a terminal
_CHANGES = {  # of each tested statistic: title, and meaning of the size of its change
    "class_prior": ("class prior", "difference of the class priors"),
    "confidence": ("confidence", "share of unsure images, 5 % before"),
    "features": ("features", "difference of the distances to the prototypes"),
}
_ClientOption = Annotated[
    str | None, Option(metavar="NAME", help="With the folder of a run: the client whose classifier to use.")
]
_BackboneOption = Annotated[str | None, Option(help="Name or path of the CLIP model (default: that of the run).")]
_DeviceOption = Annotated[Literal["auto", "cpu", "cuda", "mps"], Option(help="Device of the model.")]


def predict(
    images: Annotated[list[str], Argument(help="Images or folders of images.")],
    classifier: Annotated[
        Path | None, Option("--classifier", "-c", help="Folder of `fedcopl export` or of a run; or use --zero-shot.")
    ] = None,
    zero_shot: Annotated[
        bool, Option("--zero-shot", help="Use plain CLIP with the classes of --classes; needs no run.")
    ] = False,
    classes: Annotated[Path | None, Option(help="For --zero-shot: file of class names, one per line.")] = None,
    out: Annotated[
        str, Option("--out", "-o", metavar="FILE", help="File for the predictions, .csv or .jsonl; -: standard output.")
    ] = "-",
    client: _ClientOption = None,
    top: Annotated[int, Option(min=0, help="Number of most probable classes to write per image.")] = 3,
    threshold: Annotated[
        float | None,
        Option(
            "--abstain-below",
            min=0,
            max=1,
            help="Give no label below this probability (default: the threshold of the classifier).",
        ),
    ] = None,
    abstain_share: Annotated[
        float | None,
        Option(min=0, max=1, help="Set the threshold so that this share of the site's training images has no label."),
    ] = None,
    file_format: Annotated[
        Literal["csv", "jsonl"] | None, Option("--format", help="Format of the file (default: by its extension).")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing file.")] = False,
    prior: Annotated[
        str,
        Option(
            metavar="site|none|images|FILE",
            help="Class prior: that of the site (site), of all sites together (none), estimated from the given images "
            "(images; they are read twice), or from a FILE: a table `class,share`, or JSON.",
        ),
    ] = "site",
    backbone: Annotated[
        str | None, Option(help="Name or path of the CLIP model (default: that of the run; with --zero-shot ViT-B/32).")
    ] = None,
    device: _DeviceOption = "auto",
    plugin: PluginFiles = None,
) -> None:
    """Predict the classes of images; the same command continues an interrupted prediction."""
    if zero_shot and (classes is None or classifier is not None):
        raise ConfigError("--zero-shot: needs --classes FILE, one name per line, and no --classifier")
    if not zero_shot and classifier is None:
        raise ConfigError("--classifier: is missing; name an export or a run, or use --zero-shot --classes FILE")
    if not zero_shot and classes is not None:
        raise ConfigError("--classes: is for --zero-shot; a classifier has its own classes")
    if abstain_share is not None and threshold is not None:
        raise ConfigError("--abstain-share, --abstain-below: both set the threshold; use one of them")
    if out != "-":
        check_output_file(Path(out), overwrite=overwrite)
    from ..classifier.predict import check_paths_exist, pictures_at
    from ..classifier.prediction_file import choose_format, label_images

    rows = choose_format(out, file_format, top)
    check_paths_exist(images)  # before the model is loaded
    class_shares = _read_prior_file(prior, ("site", "none", "images"))
    loaded = _load(classifier, classes, client, backbone, device)
    if abstain_share is not None:
        threshold = _threshold_of(abstain_share, loaded)
    try:
        if prior == "images":
            print("estimating the class prior of the images", file=sys.stderr)
            loaded = loaded.fitted_to(pictures_at(images, [], loaded.recipe.decode_options))
        loaded = _with_prior(loaded, prior, class_shares)
        with _progress() as progress:
            done = label_images(loaded, images, rows, threshold, out, progress, overwrite=overwrite)
    except KeyboardInterrupt as error:
        hint = "" if out == "-" else "; the same command continues"
        raise Interrupted(f"stopped{hint}") from error
    for line in _summary(done, out):
        print(line, file=sys.stderr)
    if classifier is None:
        print_next(("fedcopl", "new", "STUDY"))
    elif (classifier / "settings.toml").is_file():
        owner = loaded.recipe.about["client"]
        print_next(("fedcopl", "export", classifier, "--client", owner, "-o", "classifier"))
    else:
        print_next(("fedcopl", "drift", "LATER_IMAGES", "-c", classifier, "--before", images[0]))


def _load(
    folder: Path | None, classes: Path | None, client: str | None, backbone: str | None, device: str
) -> "Classifier":
    """Load the classifier of a folder, or plain CLIP with a list of classes."""
    from ..classifier.loading import load, zero_shot

    if folder is not None:
        return load(folder, client=client, backbone=backbone, device=device)
    assert classes is not None
    return zero_shot(classes, backbone or _ZERO_SHOT_MODEL, device)


def _read_prior_file(prior: str, keywords: tuple[str, ...]) -> dict[str, object] | None:
    """Return the share of each class in the file that --prior names; None for one of the keywords."""
    from ..data.label_files import read_class_prior

    if prior in keywords:
        return None
    if not Path(prior).is_file():
        raise ConfigError(f"--prior: {prior!r} is neither {', '.join(keywords)} nor a file")
    return read_class_prior(Path(prior))


def _with_prior(loaded: "Classifier", prior: str, class_shares: Mapping[str, object] | None) -> "Classifier":
    """Return the classifier with the shares of --prior FILE or, for `none`, with the class prior of all sites."""
    from ..data.label_files import parse_class_prior

    if class_shares is not None:
        return loaded.with_class_prior(parse_class_prior(class_shares, loaded.recipe.classes, prior))
    return loaded.with_prior("none") if prior == "none" else loaded


def _threshold_of(abstain_share: float, loaded: "Classifier") -> float:
    """Return the probability below which this share of the site's training images gets no label."""
    confidence = loaded.recipe.confidence
    if confidence is None:
        raise DataError("--abstain-share: this classifier has no statistics of its site's images; export it first")
    return confidence.threshold(abstain_share)


def _summary(done: "LabellingProgress", out: str) -> Iterator[str]:
    """Yield a line with the counts of images, and a line with the counts of the predicted classes if there are any.

    After an interruption, images without a label, unsure ones and classes are counted from there on.
    """
    parts = [counted(done.resumed + done.images, "image")]
    if done.resumed:
        parts.append(f"{done.resumed:,} of them before the interruption; in the {done.images:,} after it")
    if done.abstained:
        parts.append(f"{done.abstained:,} without a label")
    if done.unreadable:
        parts.append(f"{done.unreadable:,} unreadable")
    if done.first_skipped:
        name, reason = done.first_skipped
        parts.append(f"{counted(done.skipped_files, 'file')} skipped, for example {name!r}: {reason}")
    parts.append(f"{done.unsure:,} unsure (no class reaches 50 %)")
    yield ", ".join(parts) + ("" if out == "-" else f" -> {out}")
    classes = [f"{name}: {count:,}" for name, count in done.labels.most_common(_MAX_CLASSES)]
    if len(done.labels) > _MAX_CLASSES:
        classes.append(f"and {len(done.labels) - _MAX_CLASSES} more classes")
    if classes:
        yield ("after the interruption: " if done.resumed else "") + ", ".join(classes)


@contextmanager
def _progress() -> Iterator[Callable[["LabellingProgress"], None]]:
    """Show a counter on a terminal, or print a line every _LINE_EVERY images elsewhere."""
    console, began = Console(stderr=True), time.monotonic()

    def summary(done: "LabellingProgress") -> str:
        rate = done.images / max(time.monotonic() - began, 1e-9)
        return f"{counted(done.resumed + done.images, 'image')}, {rate:,.0f} a second"

    if console.is_terminal:
        with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as bar:
            task = bar.add_task("loading")
            yield lambda done: bar.update(task, description=summary(done))
        return
    lines = 0

    def print_line(done: "LabellingProgress") -> None:
        nonlocal lines
        if done.images // _LINE_EVERY > lines:
            lines = done.images // _LINE_EVERY
            print(summary(done), file=sys.stderr)

    yield print_line


def export(
    run: Annotated[Path, Argument(help="Folder of a finished run.")],
    out: Annotated[Path, Option("--out", "-o", help="Folder to write; it must be new.")],
    client: Annotated[str | None, Option(metavar="NAME", help="Client whose classifier to export.")] = None,
    all_clients: Annotated[
        bool, Option("--all", help="Export the classifiers of all clients, each to a folder of its own.")
    ] = False,
    onnx: Annotated[bool, Option("--onnx", help="Also write ONNX, checked against torch.")] = False,
    with_backbone: Annotated[bool, Option("--with-backbone", help="Include the files of the CLIP model.")] = False,
    abstain_share: Annotated[
        float,
        Option(min=0, max=1, help="Set the threshold so that this share of the site's training images has no label."),
    ] = 0.05,
    backbone: _BackboneOption = None,
    prior: Annotated[
        str,
        Option(
            metavar="site|none|FILE",
            help="Class prior: that of the site (site), of all sites together (none; the site's own is not exported), "
            "or from a FILE: a table `class,share`, or JSON.",
        ),
    ] = "site",
    plugin: PluginFiles = None,
) -> None:
    """Write classifiers as safetensors, each with a model card and a threshold for abstention."""
    if all_clients and client is not None:
        raise ConfigError("--all: exports all clients; leave out --client")
    check_output_folder(out, new=not all_clients)
    from ..classifier.export import export as write
    from ..classifier.loading import FinishedRun
    from ..classifier.onnx_export import onnx_libraries
    from ..run.folder import file_name

    if onnx:
        onnx_libraries()  # reports a missing library before any work
    class_shares = _read_prior_file(prior, ("site", "none"))
    if not run.is_dir():
        raise RunFolderError(f"{run}: {no_folder(run)}; name the folder of a finished run")
    finished_run = FinishedRun(run, backbone=backbone, device="cpu")
    names = finished_run.clients if all_clients else [finished_run.choose(client)]
    folders = [out / file_name(name) if all_clients else out for name in names]
    for folder in folders:
        check_output_folder(folder, new=True)
    classifiers = _with_thresholds(finished_run, names, abstain_share)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for classifier, folder in zip(classifiers, folders, strict=True):
        adjusted = _with_prior(classifier, prior, class_shares)
        difference = write(adjusted, folder, onnx=onnx, with_backbone=with_backbone)  # of ONNX from torch
        console.print(str(folder))
        if difference:
            console.print(
                f"  ONNX agrees with torch: logits differ by at most {difference.logits:.1e}, "
                f"probabilities by {difference.probabilities:.1e}"
            )
    example = ("from fedcopl import Classifier", f"classifier = Classifier.load({str(folders[0])!r})")
    print("in Python:", *example, 'labels = classifier.predict("PHOTOS")', sep="\n  ", file=sys.stderr)
    print_next(("fedcopl", "predict", "PHOTOS", "-c", folders[0], "-o", "predictions.csv"))


def _with_thresholds(run: "FinishedRun", clients: list[str], abstain_share: float) -> Iterator["Classifier"]:
    """Return the clients' classifiers, with thresholds for abstention if the run's images can be read."""
    from ..classifier.loading import TrainingImages

    run.classifier(clients[0])  # raises if the classifier itself cannot be loaded
    try:
        images = TrainingImages(run)
    except FedCoPLError as error:
        note = f"note: no threshold, because the images of the run cannot be read: {error}"
        Console(stderr=True).print(note, highlight=False, markup=False, soft_wrap=True)
        return (run.classifier(client) for client in clients)
    return (images.classifier(client, abstain_share) for client in clients)


def drift(
    recent: Annotated[list[str], Argument(help="Recent images or folders of images.")],
    classifier: Annotated[Path, Option("--classifier", "-c", help="Folder of `fedcopl export` or of a run.")],
    before: Annotated[
        list[str], Option(metavar="PATH", help="Image or folder of images from the time of the run; may be repeated.")
    ],
    client: _ClientOption = None,
    backbone: _BackboneOption = None,
    device: _DeviceOption = "auto",
    plugin: PluginFiles = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test without labels whether recent images differ from earlier ones; exit code 1 if they do."""
    from ..classifier.drift import compare_streams
    from ..classifier.loading import load
    from ..classifier.predict import check_paths_exist, pictures_at

    check_paths_exist([*before, *recent])  # before the model is loaded
    loaded = load(classifier, client=client, backbone=backbone, device=device)
    earlier, later = (pictures_at(paths, [], loaded.recipe.decode_options) for paths in (before, recent))
    report = compare_streams(loaded, earlier, later)
    if as_json:
        print(json.dumps({**asdict(report), "advice": report.advice}))
    else:
        print(f"{'images':<12}{report.before:,} before, {report.recent:,} recent")
        for one in report.changes:
            (title, number), result = _CHANGES[one.statistic], "CHANGED" if one.is_change else "unchanged"
            print(f"{title:<12}{result:<10} {number}: {one.size:.0%} (p = {one.p_value:.3f})")
        if any(one.statistic == "class_prior" and one.is_change for one in report.changes):
            for name, change in report.class_changes:
                print(f"{'':<12}{name}: {100 * change:+.0f} percentage points of the images")
        print(report.advice)
    if report.has_changed:
        raise typer.Exit(1)
