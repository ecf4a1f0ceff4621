"""The Python API: sites, a federation of them, and its result."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .classifier.loading import FinishedRun, TrainingImages
from .classifier.predict import Classifier
from .config import RunConfig, override
from .data.catalog import with_decode_options
from .data.dataset import Dataset, clean_class_names, read_classes
from .data.in_memory import (
    SITES,
    ImageLabels,
    Images,
    SiteImages,
    class_numbers,
    collect_images,
    collect_labelled_images,
    dataset_of_images,
    dataset_of_sites,
)
from .errors import ConfigError, DataError, FedCoPLError, naming_arguments
from .plurals import counted
from .progress import reporting
from .report.run_page import write_report
from .run.progress_reporter import ProgressReporter
from .run.record import ClientRecord, Outcome, round_to_plain
from .simulation.simulate import simulate as run_simulation
from .simulation.worker_pool import WorkerCount


class Result(Mapping[str, Classifier]):
    """A finished run: `result["north"]` is the classifier of the site `north`. Accuracies are shares from 0 to 1.

    >>> from tempfile import TemporaryDirectory
    >>> from fedcopl import simulate
    >>> with TemporaryDirectory() as folder:
    ...     result = simulate(rounds=1, clients=2, epochs=1, threads=1, folder=folder, progress=False)
    ...     again = Result.load(folder)
    ...     same = again.outcome == result.outcome
    >>> same, list(again), again.accuracy == result.outcome.final.macro
    (True, ['client-0', 'client-1'], True)
    """

    def __init__(self, folder: Path | TemporaryDirectory[str], dataset: Dataset | None = None):
        self._temporary = folder if isinstance(folder, TemporaryDirectory) else None  # deleted with the result
        self.folder = Path(folder.name) if isinstance(folder, TemporaryDirectory) else folder
        self._dataset = dataset
        self._classifiers: dict[str, Classifier] = {}

    @classmethod
    @naming_arguments()
    def load(cls, folder: str | Path) -> "Result":
        """Load the finished run in a folder, written by this library or by `fedcopl run`.

        Raises:
            RunFolderError: The folder has no finished run, or it is damaged.
        """
        result = cls(Path(folder))
        result._run.choose(result._run.clients[0])
        return result

    @cached_property
    def _run(self) -> FinishedRun:
        return FinishedRun(self.folder)

    @cached_property
    def _training_images(self) -> TrainingImages | None:
        try:
            return TrainingImages(self._run, self._dataset)
        except FedCoPLError:  # the images cannot be read: the classifiers have no threshold for abstention
            return None

    @naming_arguments()
    def __getitem__(self, site: str) -> Classifier:
        if site not in self._run.clients:
            raise KeyError(site)
        if site not in self._classifiers:
            source = self._training_images or self._run
            self._classifiers[site] = source.classifier(site)
        return self._classifiers[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._run.clients)

    def __len__(self) -> int:
        return len(self._run.clients)

    @property
    def outcome(self) -> Outcome:
        """Every number of the run, round by round and client by client."""
        return self._run.outcome

    @property
    def method(self) -> str:
        """The title of the run, as in tables: `PromptFL + FPL + priors`, `FedCoPL (as published)`."""
        return self.outcome.method

    @property
    def accuracy(self) -> float | None:
        """The mean over the sites of their accuracy on their own test images, after the last round."""
        return self.outcome.final.macro

    @property
    def zero_shot(self) -> float | None:
        """The mean over the sites of the accuracy of zero-shot CLIP on their own test images."""
        return self.outcome.zero_shot.macro

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """One row per round, for `pandas.DataFrame(result.rounds)`."""
        return [round_to_plain(record) for record in self.outcome.rounds]

    @property
    def report(self) -> Path:
        """The path of the HTML report."""
        return self.folder / "report.html"

    def __repr__(self) -> str:
        accuracy = "accuracy unknown" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        zero_shot = "" if self.zero_shot is None else f" (zero-shot {self.zero_shot:.1%})"
        sites, rounds = counted(len(self), "site"), counted(len(self.outcome.rounds), "round")
        return f"<Result: {self.method}, {sites}, {rounds}, {accuracy}{zero_shot}>"

    def _repr_html_(self) -> str:
        rows = "".join(_table_row(client) for client in self.outcome.clients)
        head = "<tr><th>site</th><th>images</th><th>zero-shot</th><th>final</th></tr>"
        return f"<table><caption>{escape(repr(self)[1:-1])}</caption>{head}{rows}</table>"


def _table_row(client: ClientRecord) -> str:
    accuracies = ("" if share is None else f"{share:.1%}" for share in (client.zero_shot, client.final))
    cells = "".join(f"<td>{cell}</td>" for cell in (escape(client.name), f"{client.train or 0:,}", *accuracies))
    return f"<tr>{cells}</tr>"


_SettingValue = str | int | float | bool | Path


def _settings_of(
    settings: Mapping[str, _SettingValue], config: RunConfig | None = None, fixed: Mapping[str, Any] | None = None
) -> RunConfig:
    """Return the settings of a run.

    Args:
        settings: Settings by name: `section__key`, or `key` if it is unique.
        config: Complete settings to start from.
        fixed: Settings of `data` that the caller determines.
    """
    pairs = [f"{name.replace('__', '.')}={_format_value(name, value)}" for name, value in settings.items()]
    overridden = override({} if config is None else config.model_dump(), pairs)
    for key, value in (fixed or {}).items():
        overridden.setdefault("data", {})[key] = value
    return RunConfig.from_mapping(overridden, "settings")


def _format_value(name: str, value: Any) -> str:
    """Return a value as in a settings file; JSON scalars are valid TOML."""
    plain = value.item() if hasattr(value, "item") else str(value) if isinstance(value, Path) else value
    if not isinstance(plain, str | int | float | bool):
        raise ConfigError(f"{name}: should be a text, a number, True or False, not {value!r}")
    return json.dumps(plain)


@dataclass(frozen=True, repr=False)
class Site:
    """A site of a federation, with its unlabelled images and, optionally, labelled test images.

    Args:
        name: Unique name of the site.
        images: A folder, a list of paths, Pillow images or arrays, or a uint8 array (n, height, width, 3).
        test: `(images, labels)`, or a folder with a sub-folder for each class. Only used to report accuracy.

    >>> Site("north", np.zeros((4, 8, 8, 3), np.uint8))
    <Site north: 4 images in memory>
    >>> Site("south", "photos/south", test="photos/south-labelled")
    <Site south: photos/south, with test images>
    """

    name: str
    images: Images
    test: Images | tuple[Images, ImageLabels] | None = None

    def _collect_images(self, classes: Sequence[str]) -> SiteImages:
        """List and validate the site's images and test images, whose labels are among `classes`."""
        origin = f"site {self.name}"
        train = collect_images(self.images, origin)
        if not len(train):
            reason = f"; {train.skipped[0][0]}: {train.skipped[0][1]}" if train.skipped else ""
            raise DataError(f"{origin}: has no images{reason}")
        if self.test is None:
            return SiteImages(self.name, train)
        images, labels = self.test if isinstance(self.test, tuple) else (self.test, None)
        return SiteImages(self.name, train, *collect_labelled_images(images, labels, classes, f"{origin}, test"))

    def __repr__(self) -> str:
        test = "" if self.test is None else ", with test images"
        return f"<Site {self.name}: {_describe(self.images)}{test}>"


def _describe(images: Images) -> str:
    if isinstance(images, np.ndarray):
        return f"{counted(len(images), 'image')} in memory"
    return str(images) if isinstance(images, str) or not isinstance(images, Sequence) else counted(len(images), "image")


_FIXED_SETTINGS = ("source", "path", "clients", "partition")  # of `data`, determined by the sites


class Federation:
    """A federation of sites that train one classifier each, together and without labels.

    Args:
        sites: The sites, each with a unique name.
        classes: The class names, as a list or as a file with one name per line.
        method: Name of the method, see `fedcopl methods`.
        config: Complete settings to start from.
        settings: Any setting of `fedcopl run` by name, as in `Federation(sites, classes, rounds=10, lr=0.05)`.

    Raises:
        ConfigError: A setting is unknown or invalid.
        DataError: There is no site or no class, or two sites have the same name.

    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits(n_class=2)
    >>> images = (digits.images * 255 / 16).round().astype(np.uint8)
    >>> measured = images[60:90], digits.target[60:90]
    >>> sites = [Site("north", images[:60], test=measured), Site("south", images[90:150])]
    >>> federation = Federation(sites, ["zero", "one"], rounds=1, epochs=1, threads=1)
    >>> federation
    <Federation of 2 sites, 2 classes, method fedcopl>
    >>> result = federation.fit(progress=False)
    >>> list(result), result["north"].predict(images[:2]).tolist()
    (['north', 'south'], ['zero', 'one'])
    """

    def __init__(
        self,
        sites: Sequence[Site],
        classes: Sequence[str] | str | Path,
        *,
        method: str = "fedcopl",
        config: RunConfig | None = None,
        **settings: _SettingValue,
    ):
        self.sites, self.classes = tuple(sites), _read_class_names(classes)
        _check_site_names(self.sites)
        fixed_names = [name for name in settings if name.removeprefix("data__") in _FIXED_SETTINGS]
        if fixed_names:
            raise ConfigError(f"{fixed_names[0]}: cannot be set; the sites of the federation determine it")
        fixed = {"source": SITES, "path": "", "clients": len(self.sites), "partition": "natural"}
        self.config = _settings_of({"method": method, **settings}, config, fixed)

    @naming_arguments()
    def fit(
        self,
        folder: str | Path | None = None,
        *,
        progress: bool | ProgressReporter = True,
        resume: bool = False,
        previous_run: str | Path | None = None,
        workers: WorkerCount = "auto",
    ) -> Result:
        """Train all rounds and return the classifiers of all sites.

        Args:
            folder: Where to store the run; None: in a temporary folder that is deleted with the result.
            progress: Whether to show progress, or an object that receives it.
            resume: Whether to resume an interrupted run in `folder`.
            previous_run: The folder of a finished run to continue, as with `fedcopl run --from`.
            workers: The number of processes, or "auto" for one per core; results do not depend on it.

        Raises:
            FedCoPLError: Settings, images, model or folder cannot be used.
        """
        dataset = dataset_of_sites([site._collect_images(self.classes) for site in self.sites], self.classes)
        return _run(self.config, dataset, folder, progress, resume, workers, previous_run)

    def __repr__(self) -> str:
        sites, classes = counted(len(self.sites), "site"), counted(len(self.classes), "class")
        return f"<Federation of {sites}, {classes}, method {self.config.method}>"


@naming_arguments()
def simulate(
    images: Images | None = None,
    labels: ImageLabels | None = None,
    *,
    classes: Sequence[str] | str | Path | None = None,
    test: Images | tuple[Images, ImageLabels] | None = None,
    folder: str | Path | None = None,
    progress: bool | ProgressReporter = True,
    resume: bool = False,
    workers: WorkerCount = "auto",
    config: RunConfig | None = None,
    **settings: _SettingValue,
) -> Result:
    """Split one data set over simulated clients, train them, and return the result.

    Args:
        images: The training images, as for `Site`; None: the data set of the settings, as for `fedcopl run`:
            `simulate(source="cifar10", path="/data")`.
        labels: Their classes, only used to partition the images and to report accuracy.
        classes: The class names, as a list or as a file with one name per line.
        test: Labelled test images, as for `Site`.
        folder: Where to store the run; None: in a temporary folder that is deleted with the result.
        progress: Whether to show progress, or an object that receives it.
        resume: Whether to resume an interrupted run in `folder`.
        workers: The number of processes, or "auto" for one per core; results do not depend on it.
        config: Complete settings to start from.
        settings: Any setting of `fedcopl run` by name.

    Raises:
        FedCoPLError: Settings, images, model or folder cannot be used.

    >>> result = simulate(rounds=1, clients=2, epochs=1, threads=1, progress=False)
    >>> len(result), 0 < result.zero_shot < 1, result.outcome.final.number
    (2, True, 1)
    """
    if images is None:
        return _run(_settings_of(settings, config), None, folder, progress, resume, workers)
    if classes is None:
        raise ConfigError("classes: is missing; give the class names")
    config = _settings_of(settings, config, {"source": SITES, "path": ""})
    dataset = _dataset_of(images, labels, test, _read_class_names(classes))
    return _run(config, dataset, folder, progress, resume, workers)


def _dataset_of(
    images: Images, labels: ImageLabels | None, test: Images | tuple[Images, ImageLabels] | None, classes: Sequence[str]
) -> Dataset:
    """Return the data set of images and labels that the caller of `simulate` gave."""
    train = collect_images(images, "images")
    true_labels = None if labels is None else class_numbers(labels, classes, "labels")
    if true_labels is not None and len(true_labels) != len(train):
        raise DataError(f"labels: {len(true_labels)} for {counted(len(train), 'image')}; give one for each image")
    test_set = None
    if test is not None:
        test_images, test_labels = test if isinstance(test, tuple) else (test, None)
        test_set = collect_labelled_images(test_images, test_labels, classes, "test")
    return dataset_of_images(train, true_labels, test_set, classes)


def _run(
    config: RunConfig,
    dataset: Dataset | None,
    folder: str | Path | None,
    progress: bool | ProgressReporter,
    resume: bool,
    workers: WorkerCount,
    previous_run: str | Path | None = None,
) -> Result:
    """Simulate a run on `dataset` (None: that of the settings), write its report, and return its result."""
    dataset = None if dataset is None else with_decode_options(dataset, config.data)
    result = Result(TemporaryDirectory(prefix="fedcopl-") if folder is None else Path(folder), dataset)
    previous = None if previous_run is None else Path(previous_run)
    options: dict[str, Any] = {"resume": resume, "dataset": dataset, "previous_run": previous, "workers": workers}
    with reporting(config.rounds, progress) as reporter:
        run_simulation(config, result.folder, progress=reporter, **options)
    write_report(result.folder)
    return result


def _read_class_names(classes: Sequence[str] | str | Path) -> tuple[str, ...]:
    """Return the class names, given as a list or as a file with one name per line."""
    if isinstance(classes, str | Path):
        file = Path(classes).expanduser()
        listed = read_classes(file)
        if listed.synonyms:
            fix = f"remove them from the file and set model.template='a photo of a {{}}{listed.synonyms}'"
            raise DataError(f"{classes}: has synonyms, which are not read from a file here; {fix}")
        return tuple(listed.names)
    if not len(classes):
        raise DataError("classes: is empty; give at least two class names")
    return clean_class_names([str(name) for name in classes], "classes")


def _check_site_names(sites: Sequence[Site]) -> None:
    if not sites:
        raise DataError("sites: is empty; give at least one site")
    repeated = [name for name, count in Counter(site.name for site in sites).items() if count > 1]
    if repeated:
        raise DataError(f"sites: two sites have the name {repeated[0]!r}; give each a unique name")
