"""A page as a tree. A tag that is never closed, or closed in the wrong order, is an error."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input"}
IN_A_LINE = {"b", "bdi", "code"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list["Element | str"] = field(default_factory=list)

    def __iter__(self) -> Iterator["Element"]:
        """All elements below, in the order of the page."""
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child

    def all(self, tag: str, **attributes: str) -> list["Element"]:
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [e for e in self if e.tag == tag and all(_has(e, *pair) for pair in wanted.items())]

    def one(self, tag: str, **attributes: str) -> "Element":
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        """What is written, with single spaces."""
        return " ".join("".join(map(_written, self.children)).split())


def _written(child: Element | str) -> str:
    if isinstance(child, str):
        return child
    return child.text if child.tag in IN_A_LINE else f" {child.text} "


def _has(element: Element, name: str, value: str) -> bool:
    there = element.attributes.get(name)
    return there is not None and (value in there.split() if name == "class" else value == there)


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("page", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(self.open[-1].children[-1])

    def handle_startendtag(self, tag, attrs):
        assert len(attrs) == len(dict(attrs)), f"<{tag}> has an attribute twice"
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def parse(html: str) -> Element:
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert builder.open == [builder.root], f"never closed: {[e.tag for e in builder.open[1:]]}"
    return builder.root
