"""Error messages of invalid settings."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

_KINDS = {  # pydantic's type of error, or a prefix of it -> the expected value
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
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_MAX_ERRORS = 50  # that are explained: finding the nearest name of 20,000 unknown ones takes minutes
_PATTERNS = {r"^[\w.-]+$": "made of letters, digits, dots, dashes and underscores"}


def explained(errors: Iterable[Mapping[str, Any]], unknown: Callable[[str], str]) -> dict[str, str]:
    """Return the error message of each setting by full name; `unknown` makes that of a setting that does not exist."""
    listed = list(islice(errors, _MAX_ERRORS))
    foreign = {_name(error): unknown(_name(error)) for error in listed if error["type"] == "extra_forbidden"}
    missing = {_name(error): "is missing" for error in listed if error["type"] == "missing"}
    others = _in_words(error for error in listed if error["type"] not in ("extra_forbidden", "missing"))
    return foreign | missing | others


def _in_words(errors: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return what each invalid setting should be, by full name; a setting of a union type has one error per type."""
    expected: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for error in errors:
        name = _name(error)
        expected.setdefault(name, []).append(_expected(error))
        given[name] = repr(error["input"])
    return {
        name: f"should be {' or '.join(dict.fromkeys(words))}, not {given[name]}" for name, words in expected.items()
    }


def _name(error: Mapping[str, Any]) -> str:
    """Return the full name of a setting, without the branch of a union that pydantic adds to the path."""
    return ".".join(str(part) for part in error["loc"][:2])


def _expected(error: Mapping[str, Any]) -> str:
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _BOUNDS:
        words, limit = _BOUNDS[kind]
        return f"{words} {context[limit]}"
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(str(context["pattern"]), f"of the form {context['pattern']}")
    known = [words for start, words in _KINDS.items() if kind == start or kind.startswith(f"{start}_")]
    return known[0] if known else str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
