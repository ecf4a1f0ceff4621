"""What the guard found, in words for log, report and watch page."""

from collections.abc import Iterator, Mapping

from ..federation.client_state import ClientState
from .record import FirstPrompts, RoundRecord

LOUD = 0.2  # of the answers changed by first prompts that nobody has trained yet: worth a word


def rollback_text(record: RoundRecord) -> Iterator[str]:
    """What was undone in a round."""
    harmed = int(record.holdout.training_harmed) if record.holdout else 0
    if harmed:
        sites = f"{harmed} site{'s' * (harmed > 1)}"
        yield f"{sites} took back the training, which made answers on images kept for checking worse"
    doubtful = int(record.holdout.too_doubtful) if record.holdout else 0
    if doubtful:
        yield f"{doubtful} site{'s' * (doubtful > 1)} trained nothing: too few labels are likely to be right"
    if record.holdout and record.holdout.average_undone:
        yield "the last average made the sites' answers worse; the one before is back"


def final_text(states: Mapping[str, ClientState]) -> Iterator[str]:
    """Who gave up, and who goes on with another model than the average."""
    for name, state in states.items():
        if state.guard.gave_up:
            yield f"{name}: gave up: its model contradicts most of its first sure answers; it keeps the first prompts"
        elif state.guard.arrival is not None and state.guard.arrival.harm:
            yield f"{name}: keeps the model it had; the last average made its answers worse"


def movement_text(moved: FirstPrompts | None) -> Iterator[str]:
    """Said only of first prompts that are not quiet."""
    if moved is not None and moved.unchanged is not None and moved.unchanged < 1 - LOUD:
        yield f"the first prompts, untrained, change {1 - moved.unchanged:.0%} of the answers; see train.init"
