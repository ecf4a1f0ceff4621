"""Whose weight was clipped in a round, and who waits for the next refresh, in words."""

from collections.abc import Iterator

from .record import RoundRecord


def site_text(record: RoundRecord) -> Iterator[tuple[str, str]]:
    """Who, and what.

    >>> clipped = {"north": "Train: weight clipped from 900 to 90 images"}
    >>> record = RoundRecord(round=0, bounded=clipped, missed_refresh=("south",))
    >>> for who, what in site_text(record):
    ...     print(f"{who}: {what}")
    north: Train: weight clipped from 900 to 90 images
    south: missed the last refresh, and trains nothing until the next
    """
    yield from record.bounded.items()
    yield from ((who, "missed the last refresh, and trains nothing until the next") for who in record.missed_refresh)
