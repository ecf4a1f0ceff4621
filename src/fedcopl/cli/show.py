"""What a person sees of a finished run."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..api.progress import percent
from ..privacy.accountant import PrivacyStatement
from ..run.record import Accuracies, Outcome


def print_results(outcome: Outcome, folder: Path) -> None:
    """The outcome, zero-shot beside the result where labels tell how good they are."""
    console = Console(highlight=False, markup=False)
    if outcome.final.macro is None:
        console.print(f"{outcome.name}, seed {outcome.seed}: no labelled test images, so accuracy is unknown")
    else:
        console.print(accuracy_table(outcome))
    for title, value in facts(outcome):
        console.print(f"{title:<22}{value}")
    console.print(f"{'report':<22}{folder / 'report.html'}", soft_wrap=True)


def accuracy_table(outcome: Outcome) -> Table:
    table = Table(title=f"{outcome.name}, seed {outcome.seed}: accuracy in %")
    for name in ("", "macro", "weighted", "global"):
        table.add_column(name, justify="left" if not name else "right")
    rows: dict[str, Accuracies] = {
        "zero-shot CLIP": outcome.zero_shot,
        f"last round ({outcome.final.number})": outcome.final,
        f"best round ({outcome.best.number})": outcome.best,
    }
    for title, row in rows.items():
        table.add_row(title, *(percent(share, sign="") for share in (row.macro, row.weighted, row.everywhere)))
    return table


def facts(outcome: Outcome) -> Iterator[tuple[str, str]]:
    right = outcome.pseudo_label_accuracy
    if any(share is not None for share in right):
        title = "labels right" if outcome.setting("options", "labels") == "truth" else "pseudo labels right"
        yield title, ", ".join(percent(share) for share in right) + " (per refresh)"
    clients = len(outcome.clients)
    yield "images used", f"{outcome.images_used:,} of {outcome.images_held:,}, {clients} client{'s' * (clients != 1)}"
    yield "sent to the server", f"{size(outcome.bytes_up)} (back: {size(outcome.bytes_down)})"
    if outcome.privacy:
        yield from privacy_facts(outcome.privacy)
    yield "time", f"{outcome.seconds:.0f} s"


def privacy_facts(privacy: PrivacyStatement) -> Iterator[tuple[str, str]]:
    """What the server has seen, and the account where noise was added."""
    seen = "sums over the clients only" if privacy.secure_sums else "each client's own numbers"
    yield "the server saw", seen if privacy.epsilon is None else f"{seen}, with noise"
    if privacy.epsilon is not None:
        budget = f"epsilon {privacy.epsilon:.3g}, delta {privacy.delta:g}"
        yield "privacy", f"{budget} for {privacy.unit}, {privacy.releases} releases"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
