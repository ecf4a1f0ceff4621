"""What is wrong with a setting, in words."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

KINDS = {  # how pydantic calls a mistake, or the beginning of it -> what is meant
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a number",
    "bool": "true or false",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "model_type": "a section",
    "model_attributes_type": "a section",
    "dict_type": "a section",
    "list_type": 'a list, as ["a", "b"]',
    "too_short": "not empty",
}
BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
MAX_ERRORS = 50  # that are explained: finding the nearest name of 20,000 unknown ones takes minutes
PATTERNS = {r"^[\w.-]+$": "made of letters, digits, dots, dashes and underscores"}


def explained(mistakes: Iterable[Mapping[str, Any]], unknown: Callable[[str], str]) -> dict[str, str]:
    """Setting by its full name -> what is wrong with it; `unknown` speaks of one that there is not."""
    found = list(islice(mistakes, MAX_ERRORS))
    foreign = {_name(mistake): unknown(_name(mistake)) for mistake in found if mistake["type"] == "extra_forbidden"}
    missing = {_name(mistake): "is missing" for mistake in found if mistake["type"] == "missing"}
    others = in_words(mistake for mistake in found if mistake["type"] not in ("extra_forbidden", "missing"))
    return foreign | missing | others


def in_words(mistakes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Setting by its full name -> what it should be; a setting of several kinds has a mistake for each."""
    meant: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for mistake in mistakes:
        name = _name(mistake)
        meant.setdefault(name, []).append(_meant(mistake))
        given[name] = repr(mistake["input"])
    return {name: f"should be {' or '.join(dict.fromkeys(words))}, not {given[name]}" for name, words in meant.items()}


def _name(mistake: Mapping[str, Any]) -> str:
    """pydantic adds the branch of a union to the path: only our own names are of use to a reader."""
    return ".".join(str(part) for part in mistake["loc"][:2])


def _meant(mistake: Mapping[str, Any]) -> str:
    kind, context = str(mistake["type"]), mistake.get("ctx") or {}
    if kind in BOUNDS:
        words, limit = BOUNDS[kind]
        return f"{words} {context[limit]}"
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(str(context["pattern"]), f"of the form {context['pattern']}")
    known = [words for start, words in KINDS.items() if kind == start or kind.startswith(f"{start}_")]
    return known[0] if known else str(mistake["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
