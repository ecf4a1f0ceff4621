"""Where somebody is in the review: all of it stands in the address, so every tab has its own place."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from .order import ORDERS, SAMPLE

MOST_DIGITS = 9  # of a number in an address


@dataclass(frozen=True)
class Position:
    """An order, the class it is narrowed down to, and the position in it."""

    order: str = SAMPLE
    label: int | None = None
    at: int | None = None  # None: where there is something to do
    tab: str = ""

    @classmethod
    def read(cls, fields: Mapping[str, str], classes: int) -> "Position":
        """From an address or a form; what makes no sense is left out."""
        order = fields.get("order", SAMPLE)
        order = order if order in ORDERS else SAMPLE
        label = whole_number(fields.get("class"))
        fits = label is not None and label < classes and order != SAMPLE  # the sample is of all classes or of no use
        tab = fields.get("tab", "")
        tab = tab if re.fullmatch(r"[0-9a-f]{8}", tab) else secrets.token_hex(4)
        return cls(order, label if fits else None, whole_number(fields.get("at")), tab)

    def link(self, **changes: Any) -> str:
        """The address of this place, or of one that differs from it."""
        return f"/?{replace(self, **changes).query()}"

    def query(self) -> str:
        fields = {"order": self.order, "class": self.label, "at": self.at, "tab": self.tab}
        return urlencode({name: value for name, value in fields.items() if value is not None})


def whole_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None
