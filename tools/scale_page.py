"""Write the tables of docs/scale.md from the model of cost.

.venv/bin/python tools/scale_page.py
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedcopl.clip.timing import TowerRates
from fedcopl.clip.tower_work import embedding_work, image_work, text_work, token_bytes, weight_bytes
from fedcopl.clip.weightless import NAMED, weightless_clip
from fedcopl.config import RunConfig
from fedcopl.run.cost_model import RunSize, look_memory, step_memory
from fedcopl_experiments.expected_cost import WORDS, expected_cost
from fedcopl_experiments.experiment_catalog import find_experiments, runs_of
from fedcopl_experiments.scales import Stage, find_scale

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
BEGIN, END = "<!-- made by tools/scale_page.py: {} -->\n", "<!-- end -->\n"
TABLES = ("table1", "table2", "table3", "table4", "table5", "table6", "table8", "table9", "table10", "table11")
A100 = {"fp32": (19.5e12, 0.5), "bf16": (312e12, 0.2)}  # by its data sheet; the share of it that we assume
BATCH, CLASSES, VECTORS, CONTEXT = 64, 100, 5, 16


def grid(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def pieces() -> str:
    """What single things cost, of each model."""
    titles = ["GFLOP of", *NAMED]
    clips = [weightless_clip(name) for name in NAMED]
    levels = [clip.vision.usual_prompt_levels for clip in clips]
    images = [image_work(clip, VECTORS, level) for clip, level in zip(clips, levels, strict=True)]
    texts = [text_work(clip, CLASSES, WORDS, CONTEXT) for clip in clips]
    settings = RunConfig.from_mapping({"train": {"batch": BATCH}}, "page")
    size = RunSize(256, 0, 1, CLASSES, WORDS)
    numbers = {
        "embedding an image, once": [embedding_work(clip).forward / 1e9 for clip in clips],
        "looking at an image, with visual prompts": [image.forward / 1e9 for image in images],
        "training on an image, there and back": [image.both_ways / 1e9 for image in images],
        f"the text tower, {CLASSES} classes, once": [text.forward / 1e9 for text in texts],
        "the same in a step of training, there and back": [text.both_ways / 1e9 for text in texts],
        "**MB of** weights": [weight_bytes(clip) / 1e6 for clip in clips],
        "1,000 images kept as tokens": [token_bytes(clip) / 1e3 for clip in clips],
        f"a step of {BATCH} images and {CLASSES} classes": [step_memory(settings, clip, size) / 1e6 for clip in clips],
        "a look at 256 images": [look_memory(clip, 256) / 1e6 for clip in clips],
    }
    return grid(titles, ([name, *(f"{number:,.1f}" for number in row)] for name, row in numbers.items()))


def tables() -> str:
    """What each table of the paper costs."""
    stage = Stage(find_scale("paper"))
    titles = ["table", "runs", "PFLOP", *(f"hours, {name}" for name in A100), "GB sent up"]
    return grid(titles, (_table(name, stage) for name in (*TABLES, "all of these")))


def _table(name: str, stage: Stage) -> list[str]:
    """Seeds cost alike: one is reckoned."""
    configs = runs_of(find_experiments(TABLES if name not in TABLES else [name]), stage, [1])
    costs, trials = [expected_cost(config) for config in configs], stage.scale.trials
    rates = [TowerRates(peak * share, peak * share) for peak, share in A100.values()]
    hours = [trials * sum(cost.seconds(rate) for cost in costs) / 3600 for rate in rates]
    numbers = [trials * sum(cost.flop for cost in costs) / 1e15, *hours, trials * sum(cost.up for cost in costs) / 1e9]
    return [name, str(trials * len(costs)), *(f"{number:,.1f}" for number in numbers)]


def page() -> str:
    text = PAGE.read_text("utf-8")
    for name, made in (("pieces", pieces()), ("tables", tables())):
        begin = BEGIN.format(name)
        before, rest = text.split(begin)
        text = before + begin + made + END + rest.split(END, 1)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
