"""`fedcopl models`: list, check and download CLIP models."""

from typing import Annotated, Literal

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from ..errors import ConfigError, ModelError
from .command import CommandLine
from .show import print_next

app = CommandLine("List, show, check and download CLIP models.")

_ModelName = Annotated[str, Argument(help="Name of the model, see `fedcopl models list`.")]


@app.command("list")
def _list_models() -> None:
    """Print the known models, and whether fedcopl can load them."""
    from ..clip.known_models import KNOWN_MODELS, measured

    table = Table(box=None, pad_edge=False)
    for title in ("name", "for", "licence", "size", "loads", "tested"):
        table.add_column(title, overflow="fold")
    for model in KNOWN_MODELS:
        measurement = measured().get(model.name)
        size = f"{measurement.parameters / 1e6:,.0f} M" if measurement else "?"
        tested = "yes" if measurement or not model.loads else "no"
        table.add_row(model.name, model.purpose, model.licence, size, "yes" if model.loads else "no", tested)
    Console(highlight=False).print(table)
    print_next(("fedcopl", "models", "show", "NAME"), ("fedcopl", "models", "fetch", "NAME"))


@app.command("show")
def _show(name: _ModelName) -> None:
    """Print the details of one model."""
    from ..clip.known_models import BUILT_IN, RELEASES, describe_known_model, known_model

    if name in BUILT_IN:
        raise ConfigError(f"{name}: is built into this package; fedcopl models check {name} prints its details")
    model = RELEASES.get(name) or known_model(name)  # a release may also have OpenAI's name
    for title, text in describe_known_model(model):
        print(f"{title:<12}{text}")
    if model.weights:
        print(f"{'files':<12}{', '.join([*model.other_files, model.weights])}")
    print_next(("fedcopl", "models", "fetch" if model.weights else "check", name if model.weights else "PATH"))


@app.command("check")
def _check(
    path: Annotated[str, Argument(help="File or folder of weights, or the name of a known model.")],
    activation: Annotated[
        Literal["quick_gelu", "gelu"] | None, Option(help="Activation function, for a file that does not name it.")
    ] = None,
) -> None:
    """Print the format of a checkpoint, and load it; exit code 4 and the reason if that fails."""
    from ..clip.frozen_clip import checkpoint_kind, describe, load_clip
    from ..clip.known_models import locate

    file = locate(path)
    print(f"{'format':<12}{checkpoint_kind(file)}")
    try:
        clip = load_clip(file, activation=activation)
    except ModelError:
        print(f"{'loads':<12}no")
        raise
    print(f"{'loads':<12}yes")
    for title, text in describe(clip):
        print(f"{title:<12}{text}")
    print_next(("fedcopl", "run", "STUDY.toml", f"model.backbone={path}", "method=priors"))


@app.command("fetch")
def _fetch(name: _ModelName) -> None:
    """Download a model into the cache of the Hugging Face hub, or print which files it needs."""
    from ..clip.known_models import BUILT_IN, RELEASES, known_model, locate

    if name in BUILT_IN:
        print(BUILT_IN[name])
        print_next(("fedcopl", "run", f"model.backbone={name}"))
        return
    if name not in RELEASES:
        model = known_model(name)
        reason = "has no pinned release: download it yourself and use its path" if model.loads else "cannot be loaded"
        raise ConfigError(f"{name}: {reason}")
    print(locate(name))
    print_next(("fedcopl", "run", "STUDY.toml", f"model.backbone={name}", "method=priors"))
