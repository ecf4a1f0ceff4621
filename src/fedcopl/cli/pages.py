"""`fedcopl report`, `review` and `watch`: pages about a run and about a site's labels."""

import json
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from ..errors import FedCoPLError, Interrupted, RunFolderError, printable
from ..files import check_output_file, no_folder, write_text
from ..plurals import counted
from .command import PluginFiles
from .data import progress_bar
from .show import print_next

if TYPE_CHECKING:
    from ..algorithm.accuracy_from_sample import AccuracyEstimate
    from ..report.comparison import ComparedRun
    from ..review.images import Gallery
    from ..review.sample_survey import SampleOutcome, SampleSurvey

_COMPARISON = Path("comparison.html")


def report(
    folders: Annotated[
        list[Path],
        Argument(
            metavar="RUN...",
            help="Folders of runs, finished or not; a folder with several runs stands for all of them.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        Option("--out", "-o", help="Page to write (default: RUN/report.html, or comparison.html).", show_default=False),
    ] = None,
    open_it: Annotated[bool, Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write a self-contained HTML page about a run, or a page that compares several runs."""
    if out is not None:
        check_output_file(out)
    from ..report.comparison import render_comparison
    from ..report.run_page import write_report

    runs = _read_runs(folders)
    if len(runs) == 1:
        page = write_report(runs[0].folder, out)
    else:
        page = out or _COMPARISON
        write_text(page, render_comparison(runs))
    print(page)
    print_next(*_after_report(runs))
    if open_it and not webbrowser.open(page.resolve().as_uri()):
        print("note: the page was not opened: there is no browser", file=sys.stderr)


def _after_report(runs: "list[ComparedRun]") -> Iterator[Sequence[object]]:
    """Yield the commands to suggest after `report`, for one run or several, finished or not."""
    folder, outcome = runs[0].folder, runs[0].outcome
    client = ("--client", outcome.clients[0].name) if outcome.clients else ()
    if len(runs) > 1:
        yield "fedcopl", "report", folder
    elif not outcome.is_complete:
        yield "fedcopl", "watch", folder
    else:
        if (folder / "labels").is_dir():
            yield "fedcopl", "review", folder, *client
        if (folder / "prompts").is_dir():
            yield "fedcopl", "predict", "PHOTOS", "-c", folder, *client


def _read_runs(folders: list[Path]) -> "list[ComparedRun]":
    """Read each run once; runs without a finished round are skipped with a note unless requested by name."""
    from ..report.comparison import ComparedRun
    from ..run.folder import NoFinishedRound, find_runs, read_so_far

    requested = {folder.resolve() for folder in folders}
    paths: dict[Path, Path] = {}
    for path in (path for folder in folders for path in find_runs(folder)):
        paths.setdefault(path.resolve(), path)
    runs, not_started = [], []
    for resolved, path in paths.items():
        try:
            runs.append(ComparedRun(path, read_so_far(path)))
        except NoFinishedRound as error:
            if resolved in requested:
                raise
            not_started.append(error)
    if not runs:
        raise not_started[0]
    for reason in not_started:
        print(f"note: {reason}", file=sys.stderr)
    return runs


_RunArgument = Annotated[Path, Argument(help="Folder of a run, or of a site.", show_default=False)]
_Port = Annotated[int, Option(help="Port on 127.0.0.1; 0: any free port.", min=0, max=65535)]
_OpenIt = Annotated[bool, Option("--open", help="Open the page in the browser.")]
_Labels = Literal["final", "refresh"]


def review(
    run: _RunArgument,
    client: Annotated[
        str | None, Option(metavar="NAME", help="Client whose images to review; not needed if there is only one.")
    ] = None,
    labels: Annotated[
        _Labels, Option(help="Labels to review: of the finished classifier, or pseudo labels of the last refresh.")
    ] = "final",
    port: _Port = 0,
    open_it: _OpenIt = False,
    score: Annotated[bool, Option("--score", help="Print the estimated accuracy and exit.")] = False,
    as_json: Annotated[bool, Option("--json", help="With --score: print one JSON object.")] = False,
    export: Annotated[Path | None, Option(help="Write all answers to this new CSV file and exit.")] = None,
    manifest: Annotated[
        Path | None, Option(help="Write a manifest with the random sample as test images and exit.")
    ] = None,
    merge: Annotated[
        Path | None, Option(help="Add another reviewer's answers from a file of --export, and list the differences.")
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace existing files.")] = False,
    plugin: PluginFiles = None,
) -> None:
    """Review the labels of one client's images on a local page; confirm or correct them by keyboard.

    The answers are stored in the folder RUN. Those about a random sample give an estimate of the accuracy.
    """
    from ..review.expert_answers import Answers
    from ..review.images import open_gallery
    from ..review.sample_survey import SampleSurvey

    serves = export is None and manifest is None and merge is None and not score
    if serves:
        import_module("..local_page.serving", __package__)  # reports a missing extra before any work
    for file in (export, manifest):
        if file is not None:
            check_output_file(file, overwrite=overwrite)
    gallery = _with_labels(open_gallery(run, client), run, labels)
    survey = SampleSurvey(gallery, Answers(run, gallery.client))
    if merge is not None:
        _merge(survey, merge)
        if export is None and manifest is None and not score:
            _print_next_commands(survey, survey.save_estimate(), run)
    if export is not None:
        _export(survey, export, run)
    if manifest is not None:
        _write_manifest(survey, manifest, run / "settings.toml")
    if score:
        outcome = survey.save_estimate()
        print(json.dumps(_as_json(survey, outcome)) if as_json else _score_lines(survey, outcome))
        if not as_json:
            _print_next_commands(survey, outcome, run)
    if serves:
        _serve(survey, run, port, open_it)


def _print_next_commands(survey: "SampleSurvey", outcome: "SampleOutcome", run: Path) -> None:
    review = ("fedcopl", "review", run, "--client", survey.gallery.client)
    if outcome.has_estimate:
        print_next(("fedcopl", "report", run), (*review, "--export", "answers.csv"))
    else:
        print_next(review)


def _with_labels(gallery: "Gallery", run: Path, labels: _Labels) -> "Gallery":
    """Return the gallery with the labels to review, and print their origin.

    The finished classifier may be missing or fail to load: then the labels of the last refresh are reviewed.
    """
    from ..review.images import with_final_labels

    reason = ""
    if labels == "final":
        try:
            with progress_bar("applying the finished classifier") as progress:
                gallery = with_final_labels(gallery, run, progress)
        except FedCoPLError as error:
            reason = f"; the finished classifier cannot be used: {error}"
    print(f"labels {gallery.predictions.origin}{reason}", file=sys.stderr)
    return gallery


def _serve(survey: "SampleSurvey", run: Path, port: int, open_it: bool) -> None:
    """Serve the page until Ctrl-C, then print the score and where the answers are."""
    from ..local_page.serving import serve
    from ..review.page import ReviewPage

    images = len(survey.gallery.names)
    print(f"{survey.gallery.client}: {counted(images, 'image')}. Open this address; Ctrl-C to stop.", file=sys.stderr)
    try:
        serve(lambda keys: ReviewPage(survey, keys).app(), port=port, open_it=open_it)
    except KeyboardInterrupt as error:
        outcome, answered = survey.save_estimate(), len(survey.answers.current())
        if not answered:
            raise Interrupted("stopped; there is no answer") from error
        print(_score_lines(survey, outcome), file=sys.stderr)
        _print_next_commands(survey, outcome, run)
        stored = counted(answered, "answer is", "answers are")
        raise Interrupted(f"stopped; {stored} in {survey.answers.path}") from error


def _export(survey: "SampleSurvey", path: Path, run: Path) -> None:
    from ..review.sample_survey import answers_csv

    answers = survey.answers.current().values()
    write_text(path, answers_csv(answers))
    print(f"{path}: {counted(len(answers), 'answer')}")
    if answers:
        print_next(("fedcopl", "run", "STUDY.toml", f"data.corrections={path}"))
    else:
        print_next(("fedcopl", "review", run, "--client", survey.gallery.client))


def _merge(survey: "SampleSurvey", path: Path) -> None:
    from ..review.sample_survey import merge_answers

    merged = merge_answers(survey, path)
    added, differ = counted(merged.added, "answer"), len(merged.disagreements)
    print(f"{path}: {added} added, {merged.agreed:,} agree, {differ:,} differ and are not used")
    for image, kept_answer, other_answer in merged.disagreements:
        print(f"  {printable(image)}: kept {kept_answer}, not {printable(other_answer)}")
    for image, reason in merged.skipped:
        print(f"  {printable(image)}: skipped: {reason}")


def _write_manifest(survey: "SampleSurvey", path: Path, settings: Path) -> None:
    from ..review.sample_survey import write_manifest

    tested, classes = write_manifest(survey, path)
    print(f"{path}: {counted(tested, 'labelled test image')}")
    pairs = [f"data.path={path}", f"data.classes_file={classes}", "data.partition=iid", "data.clients=1"]
    print_next(("fedcopl", "run", settings, "data.source=manifest", *pairs))


def _score_lines(survey: "SampleSurvey", outcome: "SampleOutcome") -> str:
    estimate, predictions = outcome.estimate, survey.gallery.predictions
    facts = {
        "client": f"{survey.gallery.client}, {counted(outcome.images, 'image')}",
        "labels": predictions.origin,
        "accuracy": "unknown: no image of the random sample has an answer yet",
        "95 % interval": "",
        "random sample": f"{estimate.right:,} of {estimate.reviewed:,} right" if outcome.has_estimate else "",
        "all answers": f"{outcome.answered:,}, {outcome.corrected:,} corrected",
    }
    if outcome.has_estimate:
        facts["accuracy"] = f"{100 * estimate.share:.1f} %"
        facts["95 % interval"] = f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %"
    if outcome.has_estimate and outcome.unclear:
        facts["random sample"] += f", {outcome.unclear:,} without a class: the expert cannot tell"
    return "\n".join(f"{title:<18}{value}" for title, value in facts.items() if value)


def _as_json(survey: "SampleSurvey", outcome: "SampleOutcome") -> dict[str, Any]:
    def plain(estimate: "AccuracyEstimate") -> dict[str, Any]:
        return {**estimate._asdict(), "share": estimate.share if estimate.reviewed else None}

    return {
        "client": survey.gallery.client,
        "images": outcome.images,
        "round": survey.gallery.predictions.rounds[-1],
        "final": survey.gallery.predictions.is_final,
        **plain(outcome.estimate),
        "unclear": outcome.unclear,
        "answered": outcome.answered,
        "corrected": outcome.corrected,
        "classes": [{"name": one.name, "images": one.images, **plain(one.estimate)} for one in outcome.classes],
    }


def watch(run: _RunArgument, port: _Port = 0, open_it: _OpenIt = False) -> None:
    """Serve the report of a run on a local page that is updated after each round.

    For a folder of several runs, of a server or of a site the page compares its runs. With a fixed --port an open page
    reconnects when this command is started again.
    """
    if not run.is_dir():
        raise RunFolderError(f"{run}: {no_folder(run)}; name the folder of a started run")
    from ..data.cache import default_folder
    from ..local_page.serving import persistent_token, serve
    from ..watch import LivePage

    token = persistent_token(default_folder() / "watch.key", str(run.resolve()))
    print(f"{run}: open this address; Ctrl-C to stop.", file=sys.stderr)
    try:
        serve(lambda keys: LivePage(run, keys).app(), port=port, token=token, open_it=open_it)
    except KeyboardInterrupt as error:
        raise Interrupted("stopped watching; the run is not affected") from error
