"""`fedcopl models`: which models there are, what a checkpoint is, whether it loads."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..errors import ConfigError, ModelError
from .command import CommandLine

app = CommandLine("List, show, check and fetch CLIP models.")

ModelName = Annotated[str, typer.Argument(help="Name of the model, see `fedcopl models list`.", show_default=False)]


@app.command("list")
def list_models() -> None:
    """Print the models that people use, and whether they load here."""
    from ..clip.known_models import KNOWN_MODELS, measured

    table = Table(box=None, pad_edge=False)
    for title in ("name", "for", "licence", "size", "loads", "tried"):
        table.add_column(title, overflow="fold")
    for model in KNOWN_MODELS:
        found = measured().get(model.name)
        size = f"{found.parameters / 1e6:,.0f} M" if found else "?"
        tried = "yes" if found or not model.loads else "no"
        table.add_row(model.name, model.purpose, model.licence, size, "yes" if model.loads else "no", tried)
    Console(highlight=False).print(table)


@app.command()
def show(name: ModelName) -> None:
    """Print all that is known of one model."""
    from ..clip.known_models import about, known_model

    for title, text in about(known_model(name)):
        print(f"{title:<12}{text}")


@app.command()
def check(
    path: Annotated[str, typer.Argument(help="A folder or file of weights, or a known name.", show_default=False)],
    activation: Annotated[str, typer.Option(help="Of a bare file, which does not say: quick_gelu or gelu.")] = "",
) -> None:
    """Say what a checkpoint is and whether it loads; if not, why not (exit code 4)."""
    from ..clip.frozen_clip import describe, kind_of, load_clip
    from ..clip.known_models import locate

    if activation not in ("", "quick_gelu", "gelu"):
        raise ConfigError(f"--activation: must be quick_gelu or gelu (given: {activation!r})")
    found = locate(path)
    print(f"{'is':<12}{kind_of(found)}")
    try:
        clip = load_clip(found, activation=activation or None)  # type: ignore[arg-type]
    except ModelError:
        print(f"{'loads':<12}no")
        raise
    print(f"{'loads':<12}yes")
    for title, text in describe(clip):
        print(f"{title:<12}{text}")


@app.command()
def fetch(name: ModelName) -> None:
    """Fetch a model into the hub's cache, or say which files to put where."""
    from ..clip.known_models import BUILT_IN, RELEASES, find_or_download, known_model

    if name in BUILT_IN:
        print(BUILT_IN[name])
        return
    if name not in RELEASES:
        model = known_model(name)
        why = (
            "cannot be loaded"
            if not model.loads
            else "has no pinned release here: fetch it by hand, then give its path"
        )
        raise ConfigError(f"{name}: {why}")
    print(find_or_download(name))
