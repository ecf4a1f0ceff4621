"""Writing predictions for any number of images to standard output, or to a file, which can be resumed.

Rows are appended batch by batch to `out.csv.part`, which is renamed when it is complete. Resuming keeps complete
batches and repeats the rest, so that the file has the same bytes as without an interruption.
"""

import csv
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..clip.encoder import ENCODE_BATCH
from ..data.dataset import Skipped
from ..errors import ConfigError, RunFolderError, printable
from ..files import check_output_file, write_text
from .predict import Classifier, NamedImage, Prediction, pictures_at

_DIGITS = 6  # decimals of a probability: the last bits may differ between machines
_FORMULA = frozenset("=+-@＝＋－＠")  # first characters of a formula in a spreadsheet


class _CsvRows:
    """Predictions as CSV with image, label, probability, abstain, problem and the most probable classes."""

    def __init__(self, top: int):
        self.top = top
        best = [title for rank in range(1, top + 1) for title in (f"top_{rank}", f"probability_{rank}")]
        self.columns = ["image", "label", "probability", "abstain", "problem", *best]
        self.header = _csv_line(self.columns)

    def line(self, prediction: Prediction) -> str:
        """Format a prediction as one line."""
        abstain = {None: "", True: "yes", False: "no"}[prediction.abstains]
        name, label = self.written_name(prediction.image), _safe_cell(prediction.label or "")
        cells = [name, label, _rounded(prediction.probability), abstain, _safe_cell(prediction.problem or "")]
        for class_name, probability in prediction.top[: self.top]:
            cells += [_safe_cell(class_name), _rounded(probability)]
        return _csv_line([*cells, *[""] * (len(self.columns) - len(cells))])

    def image_name(self, line: str) -> str:
        """Return the name of the image in a line; raises ValueError for a line of another format."""
        cells = next(csv.reader([line], strict=True), [])
        if len(cells) != len(self.columns):
            raise ValueError(f"a row has {len(cells)} columns instead of {len(self.columns)}")
        return cells[0]

    def written_name(self, name: str) -> str:
        """Return an image name on one line, with ./ before a path that a spreadsheet would take for a formula."""
        plain = printable(name)
        return f"./{plain}" if plain[:1] in _FORMULA else plain


class _JsonRows:
    """Predictions as one JSON object per line, with the interface of `_CsvRows`; names are not changed."""

    header = ""

    def __init__(self, top: int):
        self.top = top

    def line(self, prediction: Prediction) -> str:
        best = [{"label": label, "probability": round(p, _DIGITS)} for label, p in prediction.top[: self.top]]
        probability = None if prediction.probability is None else round(prediction.probability, _DIGITS)
        row = {
            "image": prediction.image,
            "label": prediction.label,
            "probability": probability,
            "abstain": prediction.abstains,
            "problem": prediction.problem,
            "top": best,
        }
        return json.dumps(row) + "\n"

    def image_name(self, line: str) -> str:
        row = json.loads(line)
        if not isinstance(row, dict) or not isinstance(row.get("image"), str):
            raise ValueError("a line has no image name")
        return str(row["image"])

    def written_name(self, name: str) -> str:
        return name


_PredictionRows = _CsvRows | _JsonRows


def choose_format(out: str, form: str | None, top: int) -> _PredictionRows:
    """Return the row format named `form`; if it is None, that of the extension of `out`, or CSV for standard output.

    Raises:
        ConfigError: The name or extension is not known.
    """
    match form or ("csv" if out == "-" else Path(out).suffix.lower().removeprefix(".")):
        case "csv":
            return _CsvRows(top)
        case "jsonl" | "ndjson":
            return _JsonRows(top)
    raise ConfigError(f"{out}: should end in .csv or .jsonl, or add --format csv or --format jsonl")


def _safe_cell(text: str) -> str:
    """Return a text on one line, with an apostrophe before it if a spreadsheet would take it for a formula."""
    plain = printable(text)
    return f"'{plain}" if plain[:1] in _FORMULA else plain


def _csv_line(cells: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _rounded(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.{_DIGITS}f}"


@dataclass(frozen=True)
class _PredictionFile:
    """A file of predictions and its incomplete part."""

    path: Path
    row_format: _PredictionRows
    options: Mapping[str, Any]  # resuming requires equal options

    @property
    def part(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def options_file(self) -> Path:
        """The file with the options of the part."""
        return self.path.with_name(f"{self.path.name}.part.json")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file against other processes."""
        check_output_file(self.path)
        lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RunFolderError(f"{self.path}: another process is writing it") from error
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be written: {error.strerror}") from error
        try:
            yield
        finally:
            with suppress(OSError):
                Path(lock.lock_file).unlink()
            lock.release()

    def open(self, overwrite: bool) -> int:
        """Prepare the partial file for appending and return its number of rows; `finish` replaces an existing file.

        Raises:
            RunFolderError: The file exists and may not be overwritten, or the partial file has other options.
        """
        check_output_file(self.path, overwrite=overwrite)
        if not self.part.exists():
            write_text(self.options_file, json.dumps(self.options))
            self.append(self.row_format.header)
            return 0
        try:
            stored_options = json.loads(self.options_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            stored_options = {}
        changed = [name for name, value in self.options.items() if stored_options.get(name) != value]
        if changed:
            raise RunFolderError(
                f"{self.part}: was started with another {changed[0]}; use the same, or remove the file to start again"
            )
        return self._truncate_to_batches()

    def _truncate_to_batches(self) -> int:
        """Truncate the part after its last complete batch, and return the number of rows."""
        size, rows, end = 0, 0, 0
        with self.part.open("rb") as lines:
            for number, line in enumerate(lines, start=0 if self.row_format.header else 1):  # the header is row 0
                end += len(line)
                if line.endswith(b"\n") and number % ENCODE_BATCH == 0:
                    size, rows = end, number
        os.truncate(self.part, size)
        if not size:
            self.append(self.row_format.header)
        return rows

    def skip_written(self, pictures: Iterator[NamedImage]) -> None:
        """Skip the images that have a row already; raises RunFolderError if images and rows do not agree."""
        try:
            with self.part.open(encoding="utf-8", newline="") as lines:
                if self.row_format.header and next(lines) != self.row_format.header:
                    raise ValueError("its first line is not the header of this format")
                for number, line in enumerate(lines, start=1):
                    name, image = self.row_format.image_name(line), next(pictures, None)
                    if image is None or name != self.row_format.written_name(image.name):
                        now = "this image is missing now" if image is None else f"now it would be {image.name!r}"
                        raise ValueError(f"row {number} is for {name!r}, but {now}: the images have changed")
        except (ValueError, csv.Error) as error:
            raise RunFolderError(f"{self.part}: {error}; remove it to start again") from error

    def append(self, text: str) -> None:
        """Append rows and sync them to disk."""
        try:
            with self.part.open("ab") as file:
                file.write(text.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunFolderError(
                f"{self.part}: cannot be written: {error.strerror}; run the same command again to resume"
            ) from error

    def finish(self) -> None:
        """Rename the complete part to the file."""
        self.part.replace(self.path)
        self.options_file.unlink(missing_ok=True)


@dataclass
class LabellingProgress:
    """Counts of the images that were labelled so far."""

    images: int = 0
    abstained: int = 0
    unreadable: int = 0
    unsure: int = 0  # no class has a probability of 50 %
    labels: Counter[str] = field(default_factory=Counter)
    resumed: int = 0  # rows written before an interruption
    skipped_files: int = 0  # in folders, such as files that are not images
    first_skipped: Skipped | None = None
    uncounted: list[Skipped] = field(default_factory=list)  # skipped files that are not counted yet

    def add(self, predictions: Sequence[Prediction]) -> None:
        """Count a batch of predictions."""
        self.images += len(predictions)
        for prediction in predictions:
            self.abstained += prediction.abstains is True
            self.unreadable += prediction.problem is not None
            self.unsure += prediction.probability is not None and prediction.probability < 0.5
            self.labels.update([] if prediction.label is None else [prediction.label])
        self.count_skipped()

    def count_skipped(self) -> None:
        """Count the skipped files and keep the first; a list of all could fill the memory."""
        self.skipped_files += len(self.uncounted)
        self.first_skipped = self.first_skipped or next(iter(self.uncounted), None)
        self.uncounted.clear()


def label_images(
    classifier: Classifier,
    paths: Sequence[str],
    row_format: _PredictionRows,
    threshold: float | None,
    out: str,
    progress: Callable[[LabellingProgress], None],
    *,
    overwrite: bool = False,
) -> LabellingProgress:
    """Write predictions, batch by batch, to standard output or a file; an interrupted file is resumed.

    Args:
        paths: Images, and folders of images.
        threshold: The probability below which to abstain; None: that of the classifier.
        out: The file, or - for standard output.
        overwrite: Whether to replace an existing file.
    """
    done = LabellingProgress()
    pictures = pictures_at(paths, done.uncounted, classifier.recipe.decode_options)
    limit = classifier.threshold if threshold is None else threshold
    options = {"classifier": classifier.fingerprint, "threshold": limit}
    options |= {"format": type(row_format).__name__, "top": row_format.top}
    file = None if out == "-" else _PredictionFile(Path(out), row_format, options)
    with nullcontext() if file is None else file.locked():
        if file is None:
            sys.stdout.write(row_format.header)
        else:
            done.resumed = file.open(overwrite)
            file.skip_written(pictures)
        for batch in classifier.prediction_batches(pictures, top=row_format.top, threshold=threshold):
            text = "".join(map(row_format.line, batch))
            if file is None:
                print(text, end="", flush=True)
            else:
                file.append(text)
            done.add(batch)
            progress(done)
        if file is not None:
            file.finish()
    done.count_skipped()
    return done
