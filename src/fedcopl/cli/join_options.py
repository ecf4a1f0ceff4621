"""The options of `fedcopl join`: who and where the site is, on what conditions it answers, and within what limits."""

from pathlib import Path
from typing import Annotated

import typer

JoinArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PACKAGE] [key=value ...]",
        help="The operator's package for this site; and what is this site's own business: model.backbone, device, "
        "threads, memory, activation, and how its files are read: data.window, bands, pages.",
        show_default=False,
    ),
]
ServerOption = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server listens.")]
ImagesOption = Annotated[Path | None, typer.Option(help="Folder of images, or a table that lists them.")]
ClassesOption = Annotated[Path | None, typer.Option(help="Class names, one a line: the server's file.")]
CertificateOption = Annotated[Path, typer.Option(help="The server's certificate: its file ca.pem.")]
NameOption = Annotated[str, typer.Option(help="What this site is called; without it the machine's name.")]
FolderOption = Annotated[Path, typer.Option(help="This site's keys, states and models.")]
CorrectionsOption = Annotated[
    Path | None, typer.Option(help="An expert's answers of `fedcopl review`, to be trained on.")
]
SharedNames = Annotated[
    list[str] | None,
    typer.Option(
        help="What may leave, one each: prompts by name, and 'features' (sums of image features by class, only under "
        "secure aggregation of at least 3 sites, or --min-sites). Without it 'visual'.",
        show_default=False,
    ),
]
LeastSites = Annotated[
    int, typer.Option(min=0, help="Answer only in secure aggregation, of at least so many sites; 0: also openly.")
]
LeastNoise = Annotated[float, typer.Option(min=0, help="Answer only with at least this privacy.noise_multiplier.")]
LeastImages = Annotated[
    int,
    typer.Option(min=0, help="Minimum number of images behind any update, sum for the priors or class feature sum."),
]
NoSecureSums = Annotated[bool, typer.Option("--no-secure-aggregation", help="Take part in no secure aggregation.")]
PeersOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the site.pub of each site allowed in secure aggregation (default: those of the first).",
        show_default=False,
    ),
]
AcceptOption = Annotated[
    str,
    typer.Option(
        metavar="ask|always|FILE",
        help="Who agrees to a run before its first answer: you at this terminal, nobody, or a file of settings.",
    ),
]
MetricsPort = Annotated[
    int,
    typer.Option(min=0, max=65535, help="Port of this machine for /health and /metrics; 0: none.", show_default=False),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=NUMBER",
        help="A limit of this site: rounds, epochs, batch, prompts, template, runs, restarts, seconds, disk, "
        "epsilon; see docs/operations.md.",
        show_default=False,
    ),
]
CheckOption = Annotated[
    bool, typer.Option("--check", "--dry-run", help="Check everything, make the key, and connect to nobody.")
]
