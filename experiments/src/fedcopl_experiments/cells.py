"""One number of a table or line of a figure, and what things are called."""

from collections.abc import Callable
from dataclasses import dataclass

from fedcopl.config import RunConfig

from .scales import Stage

TITLES = {
    "dtd": "DTD",
    "resisc45": "RESISC45",
    "cub200": "CUB",
    "ucf101": "UCF101",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
}
TASKS = {  # in the order of the paper's list of data sets
    "cub200": "Image classification",
    "resisc45": "Scene classification",
    "ucf101": "Action recognition",
    "dtd": "Texture recognition",
    "cifar10": "Image classification",
    "cifar100": "Image classification",
    "digits": "Digit recognition",
}
SIX = tuple(TITLES)
FOUR = ("dtd", "resisc45", "cub200", "ucf101")
MIXED = ("dtd", "resisc45", "cifar10", "cifar100")  # of the sweeps and of the figures about clients
LABELERS = {"copl": "CoPL", "fpl": "FPL", "cpl": "CPL"}
SKEW_TITLES = {"dirichlet-0.1": "β = 0.1", "dirichlet-0.05": "β = 0.05", "quantity": "quantity"}
BASELINES = {  # "FedOPT" is how the paper spells FedOTP
    "PromptFL": "promptfl",
    "PromptProx": "promptprox",
    "pFedPrompt": "pfedprompt",
    "FedOPT": "fedotp",
}
METHODS = {  # of our own grid
    "FedCoPL": "fedcopl",
    "PromptFL": "promptfl",
    "PromptProx": "promptprox",
    "pFedPrompt": "pfedprompt",
    "FedOTP": "fedotp",
    "pFedMoAP": "pfedmoap",
    "FedVPT": "fedvpt",
    "FedCLIP": "fedclip",
    "local": "local",
    "central": "central",
}
AVERAGE = "Average"
SIZES = {"Classes": "classes", "Training Size": "train", "Testing Size": "test"}
NOT_PLAYED = {"partition", *SIZES.values()}  # measures of the data set alone
BLOCKS = {
    "dirichlet-0.1": "Dirichlet-based label skew (β = 0.1)",
    "dirichlet-0.05": "Dirichlet-based label skew (β = 0.05)",
    "quantity": "Quantity-based label skew",
}


@dataclass(frozen=True)
class Cell:
    """One number of a table, or one line of a figure: the runs it is the mean of, and what is read from them."""

    row: tuple[str, ...]
    column: tuple[str, ...]
    configs: tuple[RunConfig, ...]  # their seed is replaced; several: their mean
    measure: str = "final"
    block: str = ""
    baseline: RunConfig | None = None  # what a gain is counted from
    ranked: bool = True  # whether it may be marked as the best; bounds may not


Cells = Callable[[Stage], list[Cell]]


def title(dataset: str) -> str:
    return TITLES.get(dataset, dataset)


def seeded(config: RunConfig, seed: int) -> RunConfig:
    return config.model_copy(update={"seed": seed})
