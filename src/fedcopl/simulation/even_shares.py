"""Names of known lengths shared out among groups, so that the longest group is short."""

from collections.abc import Iterable, Iterator, Mapping, Sequence


def longest(groups: Iterable[Iterable[str]], lengths: Mapping[str, float]) -> float:
    return max(sum(lengths[name] for name in group) for group in groups)


def evenly(groups: Sequence[Sequence[str]], lengths: Mapping[str, float]) -> list[list[str]]:
    """The same names, moved and exchanged between the longest group and others as long as that makes it shorter.

    >>> evenly([["a", "e"], ["b", "c", "d"]], {"a": 65, "b": 47, "c": 41, "d": 38, "e": 39})
    [['a', 'b'], ['c', 'd', 'e']]
    """
    best = [list(group) for group in groups]
    while True:
        shorter = [tried for tried in _exchanges(best, lengths) if longest(tried, lengths) < longest(best, lengths)]
        if not shorter:
            return best
        best = min(shorter, key=lambda tried: longest(tried, lengths))


def _exchanges(groups: list[list[str]], lengths: Mapping[str, float]) -> Iterator[list[list[str]]]:
    """Every name of the longest group given to another, for one of its names or for none."""
    busiest = max(range(len(groups)), key=lambda number: sum(lengths[name] for name in groups[number]))
    for other in (number for number in range(len(groups)) if number != busiest):
        for given in groups[busiest]:
            for taken in ([], *([name] for name in groups[other])):
                tried = [list(group) for group in groups]
                tried[busiest] = [name for name in groups[busiest] if name != given] + taken
                tried[other] = [name for name in groups[other] if name not in taken] + [given]
                yield tried


def wrapped(groups: Sequence[Sequence[str]], lengths: Mapping[str, float]) -> list[list[tuple[str, float]]]:
    """For each group as much to do as for any other: names, and what share of each one is done there at first.

    Group after group is filled with the names in their order (McNaughton's rule, 1959). A name that goes beyond a group
    begins the next one with what does not fit, and is ended last of all in its own: so nobody does both at once.

    >>> wrapped([["a", "b"], ["c"]], {"a": 4, "b": 4, "c": 2})
    [[('a', 1.0)], [('b', 0.75), ('c', 1.0)]]
    """
    each = max(sum(lengths.values()) / len(groups), max(lengths.values()))
    shares: list[list[tuple[str, float]]] = [[] for _ in groups]
    number, room = 0, each
    for name in (name for group in groups for name in group):
        if lengths[name] > room and number + 1 < len(groups):
            shares[number + 1].append((name, (lengths[name] - room) / lengths[name]))
            number, room = number + 1, each - (lengths[name] - room)
        else:
            shares[number].append((name, 1.0))
            room -= lengths[name]
    return shares
