"""What a round's record says of single sites beside unusable answers, in words: whose say was cut, and who waits."""

from collections.abc import Iterator

from .record import RoundRecord


def site_text(record: RoundRecord) -> Iterator[tuple[str, str]]:
    """Who, and what.

    >>> record = RoundRecord(round=0, bounded={"north": "Train: 900 images count as 90"}, missed_refresh=("south",))
    >>> for who, what in site_text(record):
    ...     print(f"{who}: {what}")
    north: its say was cut: Train: 900 images count as 90
    south: missed the last refresh, and trains nothing until the next
    """
    yield from ((who, f"its say was cut: {how}") for who, how in record.bounded.items())
    yield from ((who, "missed the last refresh, and trains nothing until the next") for who in record.missed_refresh)
