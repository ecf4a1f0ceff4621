"""The result of a run: a classifier for each site, and the numbers of every round."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..classifier.loading import FinishedRun, OwnImages
from ..classifier.predict import Classifier
from ..data.dataset import Dataset
from ..errors import FedCoPLError, naming_arguments
from ..plurals import counted
from ..run.record import ClientRecord, Outcome, round_to_plain


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
        self._temporary = folder if isinstance(folder, TemporaryDirectory) else None  # kept as long as the result is
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
    def _own_images(self) -> OwnImages | None:
        try:
            return OwnImages(self._run, self._dataset)
        except FedCoPLError:  # the images are gone: classifiers then have no threshold
            return None

    @naming_arguments()
    def __getitem__(self, site: str) -> Classifier:
        if site not in self._run.clients:
            raise KeyError(site)
        if site not in self._classifiers:
            source = self._own_images or self._run
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
        known = "accuracy unknown" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        before = "" if self.zero_shot is None else f" (zero-shot {self.zero_shot:.1%})"
        sites, rounds = counted(len(self), "site"), counted(len(self.outcome.rounds), "round")
        return f"<Result: {self.method}, {sites}, {rounds}, {known}{before}>"

    def _repr_html_(self) -> str:
        rows = "".join(_row(client) for client in self.outcome.clients)
        head = "<tr><th>site</th><th>images</th><th>zero-shot</th><th>now</th></tr>"
        return f"<table><caption>{escape(repr(self)[1:-1])}</caption>{head}{rows}</table>"


def _row(client: ClientRecord) -> str:
    shares = ("" if share is None else f"{share:.1%}" for share in (client.zero_shot, client.final))
    cells = "".join(f"<td>{cell}</td>" for cell in (escape(client.name), f"{client.train or 0:,}", *shares))
    return f"<tr>{cells}</tr>"
