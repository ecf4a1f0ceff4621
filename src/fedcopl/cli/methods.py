"""`fedcopl methods`: what can be run and compared."""

from rich.console import Console
from rich.table import Table


def methods() -> None:
    """List the methods with their own options; run one with `fedcopl run method=NAME options.KEY=VALUE`."""
    from ..config import RunConfig
    from ..methods import METHODS, choose_method  # brings torch

    table = Table("method", "what it does", "options and their defaults")
    for name, build in METHODS.items():
        kind = choose_method(RunConfig(method=name)).Options
        options = ", ".join(f"{key}={field.default}" for key, field in kind.model_fields.items())
        table.add_row(name, (build.__doc__ or "").rstrip("."), options)
    Console().print(table)
