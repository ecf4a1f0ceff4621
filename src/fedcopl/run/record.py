"""The outcome of a run, as types: one writer, one reader. `docs/results.schema.json` is made from this file.

Who knows more writes more: a simulation knows the truth about every image, a server of real sites neither labels nor
how many images there are. What is not known is None, or empty.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

from pydantic import Field, Strict, TypeAdapter

from ..algorithm.metrics import Score, accuracy
from ..privacy.accountant import PrivacyStatement, Release

SCHEMA = 1
"""Of results.json and rounds.jsonl. A new key does not change it; a key that means something else does."""

LARGEST = 10**15  # counts, bytes and seconds beyond this are none
Count = Annotated[int, Strict(), Field(ge=0, lt=LARGEST)]
Number = Annotated[float, Strict(), Field(gt=-LARGEST, lt=LARGEST)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Text = Annotated[str, Strict()]
Flag = Annotated[bool, Strict()]
Counts = tuple[Count, ...]
"""One for each class; none at all of a client that did not answer."""


@dataclass(frozen=True, kw_only=True)
class Accuracies:
    """The three accuracies, never to be mixed, as shares between 0 and 1; None where nothing was measured."""

    macro: Share | None = None
    """mean over the clients of their accuracy on their own test images: the paper's number"""
    weighted: Share | None = None
    """the same, weighted by test images"""
    everywhere: Annotated[Share | None, Field(alias="global")] = None
    """every client's model on all clients' test images, mean over the clients"""


@dataclass(frozen=True, kw_only=True)
class Measured(Accuracies):
    """What was measured of all clients at one moment: by plain CLIP, or after a round."""

    clients: tuple[Share | None, ...] = ()
    """each client's own accuracy; None for one that did not answer or has no labels"""
    recall: tuple[Share | None, ...] | None = None
    """of each class, the share that its holders' own models find; simulation only"""


@dataclass(frozen=True)
class Drift:
    """How far the participants of a round pull apart in one array (supplement of the paper)."""

    diversity: Annotated[float, Strict()] | None = None
    """xi: how much the participants' moves cancel each other; None where it is infinite"""
    cosine: Annotated[float, Strict()] | None = None
    """cosine distance of the moves, mean over all pairs"""


@dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """What a refresh did at all clients together: what can be watched where nobody knows the truth."""

    images: Count
    """training images of all clients that answered"""
    chosen: Count
    """of these images, to train on"""
    compared: Count = 0
    """images of clients that had labelled before"""
    unchanged: Count = 0
    """of these, labelled as before"""


@dataclass(frozen=True, kw_only=True)
class HoldoutRecord:
    """The clients' hold-out checks of a round, added up; all 0 where there was nothing to check."""

    images: Number = 0.0
    """of the holdouts, on which the received average was compared with what the clients had"""
    loss_before: Number = 0.0
    """sum over them, by what the clients had"""
    loss_after: Number = 0.0
    """and by the average"""
    averages_rolled_back: Number = 0.0
    """clients that keep the model they had"""
    trainings_rolled_back: Number = 0.0
    """clients that discarded their own training"""
    low_confidence: Number = 0.0
    """clients that trained nothing, because too few of their labels are likely to be right"""
    server_rolled_back: Flag = False
    """the server went back to the average before"""


@dataclass(frozen=True, kw_only=True)
class FirstPrompts:
    """How far the first prompts, untrained, take the clients' models from plain CLIP; on their own images."""

    images: Count = 0
    """looked at"""
    cosine: Annotated[float, Strict()] | None = None
    """mean, of the features with and without; None where a method has features of its own"""
    unchanged: Share | None = None
    """share of the answers that stay the same"""


@dataclass(frozen=True, kw_only=True)
class RoundRecord(Measured):
    """One line of rounds.jsonl.

    >>> RoundRecord(round=0, macro=0.5).number
    1
    """

    round: Count
    """counted from 0"""
    untrained: Measured | None = None
    """before the first round: plain CLIP, answered through the priors; None where there are none"""
    refreshed: Flag = False
    """whether all clients labelled their images anew"""
    participants: Count = 0
    """how many trained"""
    converged: Flag = False
    """training stopped after this round, because it no longer gained on the held-out images"""
    sites: tuple[Text, ...] | None = None
    """who took part"""
    totals: Counts | None = None
    """T_c, sure images of each class over all clients, at a refresh"""
    labelling: LabelCounts | None = None
    """what can be watched of a refresh without labels"""
    examples: Count = 0
    """images trained on; 0 where the clients do not tell"""
    loss: Number | None = None
    """mean of the last epoch over the participants, weighted by their images"""
    bytes_up: Count = 0
    """from the clients to the server, what the messages say"""
    bytes_down: Count = 0
    """from the server to the clients"""
    kept_old_prompt: Flag = False
    """nothing could be averaged, so the shared prompts are those of the round before"""
    dropped: Mapping[Text, Text] = field(default_factory=dict)
    """whose answers could not be used, and every reason, with its step"""
    bounded: Mapping[Text, Text] = field(default_factory=dict)
    """whose say in the sums was cut to what the others' allow, and how"""
    missed_refresh: tuple[Text, ...] = ()
    """known clients that chose no images at the last refresh, and train nothing until the next"""
    drift: Mapping[Text, Drift] | None = None
    """of each trained array; simulation only"""
    holdout: HoldoutRecord | None = None
    """results of the hold-out checks, and what was rolled back"""
    releases: tuple[Release, ...] = ()
    """what was let out with noise on it"""
    pseudo_label_accuracy: Share | None = None
    """of this round's refresh; simulation only"""
    seconds_of: Mapping[Text, Number] = field(default_factory=dict)
    """wall time of each kind of request to the clients; simulation only"""
    seconds_per_step: Number | None = None
    """wall time of training, divided by its steps on one batch; simulation only"""
    seconds: Number = 0.0
    """since the run began, stops not counted"""

    @property
    def number(self) -> int:
        """As people count."""
        return self.round + 1

    @property
    def is_measured(self) -> bool:
        return self.macro is not None


@dataclass(frozen=True, kw_only=True)
class RefreshRecord:
    """One refresh of the pseudo labels, in rows of clients and columns of classes; simulation only."""

    round: Count
    """counted from 0"""
    images: Count = 0
    """chosen by all clients together"""
    estimated: tuple[Counts, ...] = ()
    """u: images of each class that each client was sure of"""
    allocated: tuple[Counts, ...] = ()
    """how many of each class each client was allowed"""
    selected: tuple[Counts, ...] = ()
    """how many of each class each client chose"""
    class_prior: tuple[tuple[Share, ...], ...] = ()
    """estimated class prior of each client, found without labels; empty without priors"""
    pseudo_label_accuracy: Share | None = None
    """share of the chosen images whose label is true"""
    distribution_similarity: Number | None = None
    """of chosen and true label counts: mean cosine over the clients"""
    coverage: Share | None = None
    """of candidate sets: the share that holds the true label"""
    mean_set_size: Number | None = None
    """of candidate sets: classes in one"""

    @property
    def number(self) -> int:
        """As people count."""
        return self.round + 1


@dataclass(frozen=True, kw_only=True)
class ClientRecord:
    """One client, and its own accuracy before and after."""

    name: Text
    """of the client or site; it may be anything printable"""
    train: Count | None = None
    """images without labels, to learn from"""
    test: Count | None = None
    """images with labels, to measure"""
    zero_shot: Share | None = None
    """accuracy of plain CLIP on its own test images"""
    final: Share | None = None
    """the same of its own model after the last measured round"""
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

    schema: Count = SCHEMA
    """version of this form; absent in folders of version 0.1"""
    name: Text = ""
    """of the run, from the settings"""
    seed: Annotated[int, Strict(), Field(ge=0)] = 0
    """of every random stream"""
    classes: tuple[Text, ...] = ()
    """names, in the order of their numbers"""
    template: Text = ""
    """the sentence around a class name"""
    method: Text = ""
    """what ran, as tables call it: method, labeler, and priors or [as published](as-published.md)"""
    trains: Flag = True
    """False: plain CLIP, and whatever is made of its answers"""
    pools: Flag = False
    """all images were in one place: no federation, but what one is measured against"""
    shared: tuple[Text, ...] | None = None
    """the arrays that the server averages; None where an old folder does not say"""
    averaged: tuple[Text, ...] | None = None
    """the same in words; None in folders of version 0.1"""
    backbone: Text = ""
    """name and fingerprint of the frozen model; empty in older folders"""
    clients: tuple[ClientRecord, ...] = ()
    """all of them, in the order of their numbers"""
    sites: tuple[Text, ...] | None = None
    """only in a real federation: everybody who ever joined"""
    called: Text = ""
    """only in a real federation: by which name its sites know the run; no other has it"""
    zero_shot: Measured = Measured()
    """plain CLIP, before anything was learnt"""
    dropped_before: Mapping[Text, Text] = field(default_factory=dict)
    """whose answers could not be used before the first round, and why"""
    first_prompts: FirstPrompts | None = None
    """how far they move the model before any training"""
    rounds: tuple[RoundRecord, ...] = ()
    """one for each round so far"""
    refreshes: tuple[RefreshRecord, ...] = ()
    """one for each refresh of the pseudo labels; simulation only"""
    images_left_out: Count = 0
    """files that could not be used; `skipped.jsonl` names them"""
    privacy: PrivacyStatement | None = None
    """what was given away; None where all settings of `privacy` are off"""
    seconds: Number = 0.0
    """of the whole run, stops not counted"""
    traffic: Mapping[Text, Count] | None = None
    """bytes that Flower counted; only in a real federation"""
    settings: Mapping[Text, Any] = field(default_factory=dict)
    """all of them, by section"""
    versions: Mapping[Text, Text] = field(default_factory=dict)
    """of Python and of the packages that decide about bits"""

    @property
    def final(self) -> RoundRecord:
        """The last round that was measured, or the last."""
        return (self._measured or self.rounds)[-1]

    @property
    def best(self) -> RoundRecord:
        """The round of the highest `macro`, the first of equals; the last where nothing was measured."""
        measured = self._measured
        return max(measured, key=lambda record: record.macro or 0.0) if measured else self.rounds[-1]

    @property
    def untrained(self) -> Measured | None:
        """What priors gave without any training; None where they were not used, or are all there is."""
        return self.rounds[0].untrained if self.rounds else None

    @property
    def _measured(self) -> list[RoundRecord]:
        return [record for record in self.rounds if record.is_measured]

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
        """Of each refresh."""
        return tuple(refresh.pseudo_label_accuracy for refresh in self.refreshes)

    @property
    def images_used(self) -> int:
        """Chosen at the last refresh; of a real federation those of the last round."""
        if self.refreshes:
            return self.refreshes[-1].images
        return self.rounds[-1].examples if self.rounds else 0

    @property
    def images_held(self) -> int | None:
        """All training images; None where that is not told."""
        held = [client.train for client in self.clients]
        return None if None in held else sum(filter(None, held))

    def setting(self, *keys: str) -> Any:
        """A setting, or None where this run knows no such setting."""
        value: Any = self.settings
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def to_plain(outcome: Outcome) -> dict[str, Any]:
    """What results.json holds: all of it, and what follows from it for those who only look."""
    plain: dict[str, Any] = adapter(Outcome).dump_python(outcome, mode="json", by_alias=True)
    if outcome.rounds:
        plain |= {key: _headline(record) for key, record in (("final", outcome.final), ("best", outcome.best))}
    plain |= {"bytes_up": outcome.bytes_up, "bytes_down": outcome.bytes_down, "images_used": outcome.images_used}
    return plain | {"pseudo_label_accuracy": list(outcome.pseudo_label_accuracy)}


def round_to_plain(record: RoundRecord) -> dict[str, Any]:
    """One line of rounds.jsonl."""
    plain: dict[str, Any] = adapter(RoundRecord).dump_python(record, mode="json", by_alias=True)
    return plain


def _headline(record: RoundRecord) -> dict[str, Any]:
    return {
        "macro": record.macro,
        "weighted": record.weighted,
        "global": record.everywhere,
        "round": record.round,
    }


def json_schema() -> dict[str, Any]:
    """The documented form of results.json."""
    schema = adapter(Outcome).json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema | {"title": "results.json of fedcopl"}


@cache
def adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def finite(number: float) -> float | None:
    """None for what JSON has no number for."""
    return number if math.isfinite(number) else None


def measured(own: Sequence[Score], whole: Sequence[Score] | None = None) -> Measured:
    """The three accuracies, and each client's own; nothing where nobody has a labelled test image."""
    if not any(examples for _, examples in own):
        return Measured()
    mean = accuracy(own, whole)
    clients = tuple(correct / examples if examples else None for correct, examples in own)
    return Measured(macro=mean.macro, weighted=mean.weighted, everywhere=mean.global_, clients=clients)
