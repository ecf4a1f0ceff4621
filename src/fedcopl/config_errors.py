"""Error messages of invalid settings."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

_KINDS = {  # type of a pydantic error, or its beginning -> the expected value
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
_MAX_ERRORS = 50  # in a message; finding the most similar names of 20,000 unknown ones takes minutes
_PATTERNS = {r"^[\w.-]+$": "made of letters, digits, dots, dashes and underscores"}


def describe_errors(errors: Iterable[Mapping[str, Any]], describe_unknown: Callable[[str], str]) -> dict[str, str]:
    """Convert pydantic errors to a message for each setting; `describe_unknown` returns that of an unknown one."""
    unknown, missing, expected, given = {}, {}, dict[str, list[str]](), {}
    for error in islice(errors, _MAX_ERRORS):
        name = ".".join(str(part) for part in error["loc"][:2])  # without the branch of a union
        if error["type"] == "extra_forbidden":
            unknown[name] = describe_unknown(name)
        elif error["type"] == "missing":
            missing[name] = "is missing"
        else:  # a setting of a union type has one error per type
            expected.setdefault(name, []).append(_expected(error))
            given[name] = repr(error["input"])
    invalid = {
        name: f"should be {' or '.join(dict.fromkeys(values))}, not {given[name]}" for name, values in expected.items()
    }
    return unknown | missing | invalid


def _expected(error: Mapping[str, Any]) -> str:
    """Describe the valid values of a setting, given its pydantic error."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _BOUNDS:
        comparison, limit = _BOUNDS[kind]
        return f"{comparison} {context[limit]}"
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(str(context["pattern"]), f"of the form {context['pattern']}")
    for start, value in _KINDS.items():
        if kind == start or kind.startswith(f"{start}_"):
            return value
    return str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
