"""Draw docs/images/method.svg: sites, server, what crosses the network and what never does.

.venv/bin/python tools/method_picture.py
"""

from pathlib import Path

OUT = Path(__file__).parents[1] / "docs" / "images" / "method.svg"
WIDTH, HEIGHT = 860, 330
SITES = ("hospital A", "hospital B", "hospital C")
KEPT = ("images", "text prompt", "class prior")
UP = "class counts, sums, visual prompt"
DOWN = "totals, averaged visual prompt"
STYLE = """
  text { font-family: system-ui, sans-serif; font-size: 14px; fill: #1f2933 }
  .small { font-size: 12px } .title { font-weight: 600 } .muted { fill: #616e7c }
  .site { fill: #e8f1fb; stroke: #3a74b0 } .server { fill: #fdf3e0; stroke: #b07818 }
  .flow { stroke: #616e7c; stroke-width: 1.6; fill: none } .head { fill: #616e7c }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb } .muted { fill: #9aa5b1 } .site { fill: #16324f; stroke: #6fa8dc }
    .server { fill: #3d2e12; stroke: #e0b050 } .flow { stroke: #9aa5b1 } .head { fill: #9aa5b1 }
  }
"""


def site(number: int, name: str) -> str:
    """Return one site with what stays there, and its two arrows."""
    top = 20 + 102 * number
    middle = top + 42
    kept = " · ".join(KEPT)
    return f"""
  <rect class="site" x="20" y="{top}" width="310" height="84" rx="8"/>
  <text class="title" x="36" y="{top + 25}">{name}</text>
  <text class="small" x="36" y="{top + 46}">frozen CLIP, pseudo labels, training</text>
  <text class="small muted" x="36" y="{top + 67}">never leave: {kept}</text>
  <path class="flow" d="M330 {middle - 9} H570" marker-end="url(#arrow)"/>
  <path class="flow" d="M570 {middle + 9} H330" marker-end="url(#arrow)"/>"""


def picture() -> str:
    """Return the whole SVG."""
    sites = "".join(site(number, name) for number, name in enumerate(SITES))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"
  aria-label="Three sites with unlabelled images exchange {UP} and {DOWN} with a server; {", ".join(KEPT)} stay.">
  <style>{STYLE}  </style>
  <defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
    <path class="head" d="M0 0 L10 5 L0 10 z"/></marker></defs>{sites}
  <rect class="server" x="570" y="20" width="270" height="288" rx="8"/>
  <text class="title" x="590" y="134">server</text>
  <text class="small" x="590" y="162">adds up counts and sums</text>
  <text class="small" x="590" y="186">balances pseudo labels over sites</text>
  <text class="small" x="590" y="210">averages visual prompts</text>
  <text class="small muted" x="590" y="246">with secure aggregation: totals only</text>
  <text class="small" x="344" y="44">{UP}</text>
  <text class="small" x="344" y="88">{DOWN}</text>
</svg>
"""


if __name__ == "__main__":
    OUT.write_text(picture(), encoding="utf-8")
    print(OUT.relative_to(OUT.parents[2]))
