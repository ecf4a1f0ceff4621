"""The typed outcome of a run, its writer and its reader. `docs/results.schema.json` is generated from this file.

A simulation records measurements against the ground truth; the server of a deployment has neither labels nor numbers of
images. Unknown values are None or empty.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

from pydantic import Field, Strict, TypeAdapter, ValidationError

from ..algorithm.metrics import Score, macro_accuracy
from ..plurals import counted
from ..privacy.accountant import PrivacyStatement, Release

SCHEMA = 1
"""Version of results.json and rounds.jsonl. New keys do not change it; a changed meaning of a key does."""

_LARGEST = 10**15  # larger counts, bytes and seconds are invalid
_NOTED_MOVEMENT = 0.2  # share of predictions that initial prompts may change without a note
_Count = Annotated[int, Strict(), Field(ge=0, lt=_LARGEST)]
_Number = Annotated[float, Strict(), Field(gt=-_LARGEST, lt=_LARGEST)]
_Share = Annotated[float, Strict(), Field(ge=0, le=1)]
_Text = Annotated[str, Strict()]
_Flag = Annotated[bool, Strict()]
Counts = tuple[_Count, ...]
"""One count per class; empty for a client that did not reply."""


@dataclass(frozen=True, kw_only=True)
class Accuracies:
    """Three kinds of accuracy, as shares between 0 and 1; None where nothing was measured."""

    macro: _Share | None = None
    """mean over the clients of the accuracy on their own test images: the paper's number"""
    weighted: _Share | None = None
    """mean over the clients, weighted by test images"""
    everywhere: Annotated[_Share | None, Field(alias="global")] = None
    """every client's model on all clients' test images, mean over the clients"""


@dataclass(frozen=True, kw_only=True)
class Measured(Accuracies):
    """Accuracies of all clients at one moment: of zero-shot CLIP, or after a round."""

    clients: tuple[_Share | None, ...] = ()
    """each client's own accuracy; None for one that did not reply or has no labels"""
    recall: tuple[_Share | None, ...] | None = None
    """recall of each class by the clients' own models on their own test images; simulation only"""


@dataclass(frozen=True)
class Drift:
    """Client drift in one array during a round (supplement of the paper)."""

    diversity: Annotated[float, Strict()] | None = None
    """xi: how much the participants' updates cancel each other; None where it is infinite"""
    cosine: Annotated[float, Strict()] | None = None
    """cosine distance of the updates, mean over all pairs"""


@dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """Label counts of a refresh over all clients, which need no ground truth."""

    images: _Count
    """training images of all clients that replied"""
    chosen: _Count
    """images selected for training"""
    compared: _Count = 0
    """images of clients that had pseudo labels before"""
    unchanged: _Count = 0
    """compared images whose pseudo label did not change"""


@dataclass(frozen=True, kw_only=True)
class HoldoutRecord:
    """Sums of the clients' hold-out checks in a round; all 0 without a holdout."""

    images: _Number = 0.0
    """held-out images on which the new average was compared with the clients' last model"""
    loss_before: _Number = 0.0
    """sum of the losses of the last model"""
    loss_after: _Number = 0.0
    """sum of the losses of the new average"""
    averages_rolled_back: _Number = 0.0
    """clients that keep their last model instead of the new average"""
    trainings_rolled_back: _Number = 0.0
    """clients that rolled their own training back"""
    low_confidence: _Number = 0.0
    """clients that did not train, because too few of their pseudo labels are likely to be right"""
    server_rolled_back: _Flag = False
    """the server restored the average of the round before"""


@dataclass(frozen=True, kw_only=True)
class InitialPromptEffect:
    """Effect of the initial prompts on zero-shot CLIP, on the clients' own images."""

    images: _Count = 0
    """number of images compared"""
    cosine: Annotated[float, Strict()] | None = None
    """mean cosine of the features with and without prompts; None where a method has features of its own"""
    unchanged: _Share | None = None
    """share of predictions that do not change"""

    def notes(self) -> Iterator[str]:
        """Yield a warning if the initial prompts change many predictions."""
        if self.unchanged is not None and self.unchanged < 1 - _NOTED_MOVEMENT:
            changed = f"{1 - self.unchanged:.0%} of the predictions"
            yield f"the initial prompts change {changed} before training; see train.init"


@dataclass(frozen=True, kw_only=True)
class RoundRecord(Measured):
    """One line of rounds.jsonl."""

    round: _Count
    """counted from 0"""
    untrained: Measured | None = None
    """zero-shot CLIP with the priors, before the first round; None without priors"""
    refreshed: _Flag = False
    """whether all clients refreshed their pseudo labels"""
    participants: _Count = 0
    """number of clients that trained"""
    converged: _Flag = False
    """training stopped after this round, because it no longer gained on the held-out images"""
    sites: tuple[_Text, ...] | None = None
    """names of the participants"""
    totals: Counts | None = None
    """T_c, confident images of each class over all clients, at a refresh"""
    labelling: LabelCounts | None = None
    """counts of the refresh"""
    examples: _Count = 0
    """images trained on; 0 where clients do not report it"""
    loss: _Number | None = None
    """mean loss of the last epoch over the participants, weighted by their images"""
    bytes_up: _Count = 0
    """payload bytes from the clients to the server"""
    bytes_down: _Count = 0
    """payload bytes from the server to the clients"""
    kept_old_prompt: _Flag = False
    """no update could be averaged: the shared prompts did not change"""
    dropped: Mapping[_Text, _Text] = field(default_factory=dict)
    """clients with unusable replies, with step and reasons"""
    bounded: Mapping[_Text, _Text] = field(default_factory=dict)
    """clients whose weight or update was clipped by `sharing.bounded`, with the amount"""
    missed_refresh: tuple[_Text, ...] = ()
    """clients that selected no images at the last refresh, and do not train until the next"""
    drift: Mapping[_Text, Drift] | None = None
    """client drift of each trained array; simulation only"""
    holdout: HoldoutRecord | None = None
    """hold-out checks and rollbacks; None at a site, which records only itself"""
    releases: tuple[Release, ...] = ()
    """differentially private releases of this round"""
    pseudo_label_accuracy: _Share | None = None
    """accuracy of this round's refresh; simulation only"""
    seconds_of: Mapping[_Text, _Number] = field(default_factory=dict)
    """wall time of each kind of request to the clients; simulation only"""
    seconds_per_step: _Number | None = None
    """wall time of training, divided by its steps on one batch; simulation only"""
    seconds: _Number = 0.0
    """wall time since the run began, without interruptions"""

    @property
    def number(self) -> int:
        """The number of the round, counted from 1."""
        return self.round + 1

    def rollbacks(self) -> Iterator[str]:
        """Yield one line for each kind of rollback in this round."""
        if self.holdout is None:
            return
        if trained := int(self.holdout.trainings_rolled_back):
            yield f"{counted(trained, 'site')} rolled training back: it made predictions on held-out images worse"
        if skipped := int(self.holdout.low_confidence):
            yield f"{counted(skipped, 'site')} did not train: too few pseudo labels are likely to be right"
        if self.holdout.server_rolled_back:
            yield "the last average made predictions worse; the average before it was restored"

    def site_notes(self) -> Iterator[tuple[str, str]]:
        """Yield the clients that were clipped or missed a refresh, each with one line.

        >>> clipped = {"north": "Train: weight clipped from 900 to 90 images"}
        >>> record = RoundRecord(round=0, bounded=clipped, missed_refresh=("south",))
        >>> for name, note in record.site_notes():
        ...     print(f"{name}: {note}")
        north: Train: weight clipped from 900 to 90 images
        south: missed the last refresh, and does not train until the next
        """
        yield from self.bounded.items()
        yield from (
            (name, "missed the last refresh, and does not train until the next") for name in self.missed_refresh
        )


@dataclass(frozen=True, kw_only=True)
class RefreshRecord:
    """One refresh of the pseudo labels, with rows of clients and columns of classes; simulation only."""

    round: _Count
    """counted from 0"""
    images: _Count = 0
    """images selected by all clients together"""
    estimated: tuple[Counts, ...] = ()
    """u: confident images of each class at each client"""
    allocated: tuple[Counts, ...] = ()
    """quota of each class at each client"""
    selected: tuple[Counts, ...] = ()
    """images of each class that each client selected"""
    class_prior: tuple[tuple[_Share, ...], ...] = ()
    """each client's class prior, estimated without labels; empty without priors"""
    pseudo_label_accuracy: _Share | None = None
    """share of the selected images whose pseudo label is true"""
    distribution_similarity: _Number | None = None
    """cosine of selected and true label counts, mean over the clients"""
    coverage: _Share | None = None
    """share of the candidate sets that contain the true label"""
    mean_set_size: _Number | None = None
    """mean number of classes in a candidate set"""

    @property
    def number(self) -> int:
        """The number of the round, counted from 1."""
        return self.round + 1


@dataclass(frozen=True, kw_only=True)
class ClientRecord:
    """One client with its accuracy before and after training."""

    name: _Text
    """name of the client or site; any printable text"""
    train: _Count | None = None
    """number of unlabelled training images"""
    test: _Count | None = None
    """number of labelled test images"""
    zero_shot: _Share | None = None
    """accuracy of zero-shot CLIP on its own test images"""
    final: _Share | None = None
    """accuracy of its own model on its own test images after the last measured round"""
    true_counts: Counts | None = None
    """training images of each class; simulation only"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run, finished or so far.

    >>> rounds = (RoundRecord(round=0, macro=0.8), RoundRecord(round=1, macro=0.7))
    >>> run = Outcome(name="demo", classes=("cat", "dog"), rounds=rounds)
    >>> run.final.macro, run.best.number
    (0.7, 1)
    >>> to_plain(run)["final"]["macro"]
    0.7
    """

    schema: _Count = SCHEMA
    """version of this format"""
    name: _Text = ""
    """name of the run, from the settings"""
    seed: Annotated[int, Strict(), Field(ge=0)] = 0
    """seed of every random stream"""
    classes: tuple[_Text, ...] = ()
    """class names, in the order of their numbers"""
    template: _Text = ""
    """zero-shot sentence, with {} for the class name"""
    method: _Text = ""
    """title of the run: method, labeler, and priors or [as published](as-published.md)"""
    trains: _Flag = True
    """False: nothing is trained; predictions of zero-shot CLIP, with or without priors"""
    centralised: _Flag = False
    """all images in one place: the centralised baseline of a federation"""
    shared: tuple[_Text, ...] | None = None
    """names of the arrays that the server averages"""
    averaged: tuple[_Text, ...] | None = None
    """descriptions of the arrays that the server averages"""
    backbone: _Text = ""
    """name and fingerprint of the frozen model"""
    clients: tuple[ClientRecord, ...] = ()
    """all clients, in the order of their numbers"""
    sites: tuple[_Text, ...] | None = None
    """all sites that ever joined; deployment only"""
    run_id: _Text = ""
    """unique name of the run at its sites; deployment only"""
    zero_shot: Measured = Measured()
    """zero-shot CLIP, before training"""
    dropped_before: Mapping[_Text, _Text] = field(default_factory=dict)
    """clients with unusable replies before the first round, with step and reasons"""
    first_prompts: InitialPromptEffect | None = None
    """effect of the initial prompts before training"""
    rounds: tuple[RoundRecord, ...] = ()
    """all finished rounds"""
    refreshes: tuple[RefreshRecord, ...] = ()
    """all refreshes of the pseudo labels; simulation only"""
    images_left_out: _Count = 0
    """number of files that could not be read; `skipped.jsonl` lists them"""
    privacy: PrivacyStatement | None = None
    """privacy account; None where all settings of `privacy` are off"""
    seconds: _Number = 0.0
    """wall time of the whole run, without interruptions"""
    traffic: Mapping[_Text, _Count] | None = None
    """bytes counted by Flower; deployment only"""
    settings: Mapping[_Text, Any] = field(default_factory=dict)
    """all settings, by section"""
    versions: Mapping[_Text, _Text] = field(default_factory=dict)
    """versions of Python and of the packages that affect results"""

    @property
    def final(self) -> RoundRecord:
        """The last round with an evaluation; the last round if none was evaluated."""
        return (self._measured or self.rounds)[-1]

    @property
    def best(self) -> RoundRecord:
        """The first round of the highest `macro`; the last round if none was evaluated."""
        measured = self._measured
        return max(measured, key=lambda record: record.macro or 0.0) if measured else self.rounds[-1]

    @property
    def untrained(self) -> Measured | None:
        """Accuracy of the priors without training; None if they are off, or nothing is trained."""
        return self.rounds[0].untrained if self.rounds else None

    @property
    def last_recall(self) -> tuple[float | None, ...]:
        """The last measured recall of each class; empty if it was never measured."""
        return next((record.recall for record in reversed(self.rounds) if record.recall), ())

    @property
    def _measured(self) -> list[RoundRecord]:
        return [record for record in self.rounds if record.macro is not None]

    @property
    def planned_rounds(self) -> int:
        """The setting `rounds`; where it is unknown, the rounds so far."""
        planned = self.setting("rounds")
        return planned if isinstance(planned, int) else len(self.rounds)

    @property
    def is_complete(self) -> bool:
        """Whether all rounds are done, or training stopped because it no longer gained."""
        return len(self.rounds) >= self.planned_rounds or (bool(self.rounds) and self.rounds[-1].converged)

    @property
    def bytes_up(self) -> int:
        return sum(record.bytes_up for record in self.rounds)

    @property
    def bytes_down(self) -> int:
        return sum(record.bytes_down for record in self.rounds)

    @property
    def pseudo_label_accuracy(self) -> tuple[float | None, ...]:
        """The accuracy of the pseudo labels at each refresh."""
        return tuple(refresh.pseudo_label_accuracy for refresh in self.refreshes)

    @property
    def images_used(self) -> int:
        """The number of images selected at the last refresh, or in a deployment trained on in the last round."""
        if self.refreshes:
            return self.refreshes[-1].images
        return self.rounds[-1].examples if self.rounds else 0

    @property
    def images_held(self) -> int | None:
        """The number of training images of all clients; None if some do not report it."""
        held = [client.train for client in self.clients]
        return None if None in held else sum(filter(None, held))

    def setting(self, *keys: str) -> Any:
        """Return a setting of the run; None if it has no such setting."""
        value: Any = self.settings
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def to_plain(outcome: Outcome) -> dict[str, Any]:
    """Return the content of results.json: the whole outcome, and a summary derived from it."""
    plain: dict[str, Any] = adapter(Outcome).dump_python(outcome, mode="json", by_alias=True)
    for key, record in (("final", outcome.final), ("best", outcome.best)) if outcome.rounds else ():
        accuracies = {"macro": record.macro, "weighted": record.weighted, "global": record.everywhere}
        plain[key] = {**accuracies, "round": record.round}
    plain |= {"bytes_up": outcome.bytes_up, "bytes_down": outcome.bytes_down, "images_used": outcome.images_used}
    return plain | {"pseudo_label_accuracy": list(outcome.pseudo_label_accuracy)}


def read_outcome(plain: object) -> Outcome:
    """Return the outcome in the content of results.json; missing keys get their defaults.

    Raises:
        ValueError: A value is invalid; the message has its path, such as `rounds[3].loss is 'high'`.

    >>> run = Outcome(name="demo", classes=("cat", "dog"), rounds=(RoundRecord(round=0, loss=0.5),))
    >>> read_outcome(to_plain(run)) == run
    True
    >>> read_outcome(to_plain(run) | {"seed": "seven"})
    Traceback (most recent call last):
    ValueError: seed is 'seven'
    """
    try:
        outcome: Outcome = adapter(Outcome).validate_python(plain)
    except ValidationError as invalid:
        raise ValueError(_describe(plain, invalid.errors(include_url=False)[0])) from invalid
    _check_lengths(outcome)
    return outcome


def _describe(plain: Any, error: Any) -> str:
    """Return path and value of a pydantic error, without the branches of unions and without missing keys."""
    path = ""
    for key in error["loc"]:
        keys = range(len(plain)) if isinstance(plain, list) else plain if isinstance(plain, Mapping) else ()
        if key not in keys:  # the branch of a union, or a missing key
            break
        plain = plain[key]
        path += f"[{key}]" if isinstance(key, int) else f".{key}"
    location = path.lstrip(".") or "it"
    if error["type"] == "missing":
        return f"{location}.{error['loc'][-1]} is missing"
    return f"{location} is {error['input']!r:.40}"


def _check_lengths(outcome: Outcome) -> None:
    """Raise ValueError for a list whose length is not the number of clients or of classes."""
    classes, clients = len(outcome.classes), len(outcome.clients)
    rows: dict[str, Any] = {"zero_shot.recall": outcome.zero_shot.recall}
    rows |= {f"rounds[{n}].recall": record.recall for n, record in enumerate(outcome.rounds)}
    rows |= {f"clients[{n}].true_counts": client.true_counts for n, client in enumerate(outcome.clients)}
    for n, refresh in enumerate(outcome.refreshes):
        for kind in ("estimated", "allocated", "selected", "class_prior"):
            table = getattr(refresh, kind)
            if len(table) != clients and (table or kind != "class_prior"):
                raise ValueError(f"refreshes[{n}].{kind} has {len(table)} rows for {counted(clients, 'client')}")
            rows |= {f"refreshes[{n}].{kind}[{k}]": row for k, row in enumerate(table)}
    for location, row in rows.items():
        if len(row or ()) not in (0, classes):
            raise ValueError(f"{location} is not one number for each of {classes} classes")


def round_to_plain(record: RoundRecord) -> dict[str, Any]:
    """Return the content of one line of rounds.jsonl."""
    plain: dict[str, Any] = adapter(RoundRecord).dump_python(record, mode="json", by_alias=True)
    return plain


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of results.json."""
    schema = adapter(Outcome).json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema | {"title": "results.json of fedcopl"}


@cache
def adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def finite(number: float) -> float | None:
    """Return the number, or None for infinity and NaN, which JSON does not have."""
    return number if math.isfinite(number) else None


def measured(own: Sequence[Score], on_all: Sequence[Score] | None = None) -> Measured:
    """Return the accuracies of all clients and their means; empty if no client has a labelled test image.

    Args:
        own: Score of each client's model on its own test images.
        on_all: Score of each client's model on all clients' test images.
    """
    images = sum(examples for _, examples in own)
    if not images:
        return Measured()
    return Measured(
        macro=macro_accuracy(own),
        weighted=sum(correct for correct, _ in own) / images,
        everywhere=None if on_all is None else macro_accuracy(on_all),
        clients=tuple(correct / examples if examples else None for correct, examples in own),
    )
