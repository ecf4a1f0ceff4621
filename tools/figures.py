"""Draw the figures of the documents as SVG for light and dark pages: docs/images/method, round, calibration, image.

.venv/bin/python tools/figures.py
"""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH = 880
STYLE = """
  text { font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 13px; fill: #1f2933 }
  .title { font-weight: 600; font-size: 14px } .small { font-size: 11.5px } .muted { fill: #52606d }
  .page { fill: #ffffff } .site { fill: #e8f1fb; stroke: #3a74b0 } .server { fill: #fdf3e0; stroke: #b07818 }
  .step { fill: #ffffff; stroke: #829ab1 } .stays { fill: #fdecec; stroke: #c0392b }
  .flow { stroke: #52606d; stroke-width: 1.5; fill: none } .head { fill: #52606d }
  .wire { stroke: #829ab1; stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb } .muted { fill: #9aa5b1 } .page { fill: #1b1f24 }
    .site { fill: #16324f; stroke: #6fa8dc } .server { fill: #3d2e12; stroke: #e0b050 }
    .step { fill: #262c33; stroke: #7b8794 } .stays { fill: #451c1c; stroke: #e57373 }
    .flow { stroke: #9aa5b1 } .head { fill: #9aa5b1 } .wire { stroke: #7b8794 }
  }
"""
STAYS = "images · file names · labels · predictions · text prompt · class prior"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, lines: Sequence[str], kind: str = "step") -> str:
    """Draw a box with centred lines, the first one as its title."""
    top = y + height / 2 - 9 * (len(lines) - 1) + 4.5
    words = (
        text(x + width / 2, top + 18 * number, line, "small" if number else "", "middle")
        for number, line in enumerate(lines)
    )
    frame = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"/>'
    return "\n".join([frame, *words])


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path class="flow" d="M{x:g} {y:g} L{to_x:g} {to_y:g}" marker-end="url(#arrow)"/>'


def chain(
    x: float, y: float, height: float, widths: Sequence[float], steps: Sequence[Sequence[str]], gap: float
) -> str:
    """Draw boxes from left to right with arrows between them."""
    parts: list[str] = []
    for number, (width, lines) in enumerate(zip(widths, steps, strict=True)):
        parts.append(box(x, y, width, height, lines))
        if number + 1 < len(steps):
            parts.append(arrow(x + width, y + height / 2, x + width + gap, y + height / 2))
        x += width + gap
    return "\n".join(parts)


def picture(height: int, description: str, *parts: str) -> str:
    inside = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"
aria-label="{escape(description)}">
<style>{STYLE}</style>
<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
<path class="head" d="M0 0 L10 5 L0 10 z"/></marker></defs>
<rect class="page" width="{WIDTH}" height="{height}" rx="10"/>
{inside}
</svg>
"""


def method() -> str:
    """Draw the sites, the server, the data that they exchange and the data that never leave a site."""
    parts = []
    for number, name in enumerate(("hospital", "clinic", "practice")):
        top = 16 + 92 * number
        parts.append(f'<rect class="site" x="16" y="{top}" width="372" height="80" rx="8"/>')
        parts.append(text(30, top + 22, name, "title"))
        parts.append(text(374, top + 22, "frozen CLIP, no labels", "small muted", "end"))
        steps = (["images"], ["posteriors"], ["pseudo labels"], ["prompts"])
        parts.append(chain(30, top + 34, 34, (58, 78, 102, 64), steps, 14))
        parts.append(arrow(392, top + 30, 606, top + 30))
        parts.append(arrow(606, top + 56, 392, top + 56))
        parts.append(text(499, top + 22, "class counts, sums, visual prompt", "small", "middle"))
        parts.append(text(499, top + 73, "totals, averaged visual prompt", "small", "middle"))
    parts.append('<rect class="server" x="610" y="16" width="254" height="264" rx="8"/>')
    parts.append(text(630, 46, "server", "title"))
    tasks = ("adds up class counts and sums", "balances pseudo labels", "averages visual prompts")
    parts += [box(628, 64 + 50 * number, 218, 38, [task]) for number, task in enumerate(tasks)]
    parts.append(text(737, 240, "with secure aggregation", "small muted", "middle"))
    parts.append(text(737, 258, "it sees totals only", "small muted", "middle"))
    parts.append('<rect class="stays" x="16" y="294" width="848" height="38" rx="8"/>')
    parts.append(text(30, 318, "Never leave a site:", "title"))
    parts.append(text(196, 318, STAYS))
    description = f"Three sites send class counts, sums and a visual prompt to a server. Never leave a site: {STAYS}."
    return picture(348, description, *parts)


def communication_round() -> str:
    """Draw the exchanges of one round, the refresh of pseudo labels first."""
    parts = [
        text(16, 32, "clients", "title"),
        text(16, 226, "server", "title"),
        '<path class="wire" d="M16 140 H864"/>',
        text(864, 134, "network", "small muted", "end"),
    ]
    exchanges = (
        ("1 · estimate (Eq. 2)", "count confident images", "counts u_k", ["add up: T, S"]),
        ("2 · allocate, select (Eq. 3)", "quota, then most confident", "totals", ["send totals"]),
        ("3 · train (Eq. 5)", "SGD on prompts", "visual prompt", ["weighted mean", "Eq. 4"]),
        ("4 · evaluate", "own test images, if labelled", "correct / tested", ["record the round"]),
    )
    for number, (name, client, sent, server) in enumerate(exchanges):
        x = 16 + 216 * number
        parts.append(box(x, 46, 200, 58, [name, client], "site"))
        parts.append(box(x, 238, 200, 46, server, "server"))
        down = number == 1
        parts.append(arrow(x + 100, 236, x + 100, 108) if down else arrow(x + 100, 106, x + 100, 234))
        parts.append(text(x + 108, 166, sent, "small"))
        if number < 3:
            parts.append(arrow(x + 202, 75, x + 214, 75))
    note = (
        "1 and 2 only every Q rounds, when pseudo labels are refreshed. The averaged visual prompt goes to all clients."
    )
    parts.append(text(16, 308, note, "small muted"))
    return picture(324, "One round: estimate, allocate and select, train, evaluate", *parts)


def calibration() -> str:
    """Draw how the priors turn zero-shot log-probabilities into calibrated ones."""
    columns = (
        ("zero-shot CLIP", "log p(c | x)", "from class names", "frozen model"),
        ("logit bias", "b_c", "bias of the model to classes", "all clients: posterior sums"),
        ("class prior", "log π_k(c)", "the classes this client holds", "the client alone"),
        ("prototypes", "−½ t d_c(f)²", "class means of image features", "all clients: feature sums"),
    )
    parts = []
    for number, (name, formula, meaning, source) in enumerate(columns):
        x = 16 + 216 * number
        parts.append(box(x, 20, 200, 74, [name, formula, meaning], "site" if number in (0, 2) else "server"))
        parts.append(text(x + 100, 112, source, "small muted", "middle"))
        if number < 3:
            parts.append(text(x + 208, 62, "+", "title", "middle"))
        parts.append(arrow(x + 100, 120, 440 + (x + 100 - 440) * 0.35, 152))
    parts.append(
        box(240, 156, 400, 46, ["calibrated posterior of client k", "pseudo labels, predictions, training loss"])
    )
    parts.append(
        text(440, 224, "Everything is estimated without labels, from sums over images.", "small muted", "middle")
    )
    return picture(240, "Zero-shot CLIP plus logit bias, class prior and prototypes give calibrated posteriors", *parts)


def image_path() -> str:
    """Draw the modules that process one image at its site, and the messages that result from it."""
    parts = ['<rect class="site" x="16" y="16" width="848" height="212" rx="8"/>', text(30, 40, "at the site", "title")]
    upper_row = (
        ["decoded, cropped", "data/"],
        ["encoded", "clip/"],
        ["calibrated", "priors/"],
        ["pseudo-labelled", "labelers/"],
    )
    parts.append(chain(34, 54, 52, (184, 184, 184, 184), upper_row, 24))
    parts.append(arrow(750, 106, 750, 140))
    lower_row = (
        ["in the report", "report/"],
        ["classified", "classifier/"],
        ["checked", "algorithm/holdout"],
        ["trained on", "methods/"],
    )
    for number, lines in enumerate(lower_row):
        parts.append(box(34 + 208 * number, 144, 184, 52, lines))
        if number:
            parts.append(arrow(34 + 208 * number, 170, 34 + 208 * number - 24, 170))
    parts.append(text(30, 218, "the image, its name, its label and its prediction stay here", "small muted"))
    parts.append('<path class="wire" d="M16 244 H864"/>')
    sums = (["class counts, sums", "messages.Estimated, Adapted"], ["visual prompt", "messages.Trained"])
    parts += [box(318 + 280 * number, 262, 252, 48, lines, "server") for number, lines in enumerate(sums)]
    parts += [arrow(438, 80, 438, 260), arrow(750, 198, 750, 260)]
    parts.append(text(30, 290, "what leaves: numbers over many images", "small"))
    return picture(
        326, "An image is decoded, encoded, calibrated, labelled, trained on and classified at its site", *parts
    )


FIGURES: dict[str, Callable[[], str]] = {
    "method": method,
    "round": communication_round,
    "calibration": calibration,
    "image": image_path,
}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (IMAGES / f"{name}.svg").write_text(draw(), encoding="utf-8")
