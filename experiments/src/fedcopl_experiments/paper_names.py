"""Names of the paper: data sets, skews, and the methods of its tables."""

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
MIXED = ("dtd", "resisc45", "cifar10", "cifar100")  # in the sweeps and in the figures over clients
SKEW_TITLES = {"dirichlet-0.1": "β = 0.1", "dirichlet-0.05": "β = 0.05", "quantity": "quantity"}
BASELINES = {  # "FedOPT" is how the paper spells FedOTP
    "PromptFL": "promptfl",
    "PromptProx": "promptprox",
    "pFedPrompt": "pfedprompt",
    "FedOPT": "fedotp",
}
OURS = ("fedcopl", "copl")  # method and labeler
# Lines of the paper's figures: FedCoPL and the baselines with FPL, each with method and labeler
CURVE_METHODS = {"FedCoPL": OURS} | {f"{name} + FPL": (method, "fpl") for name, method in BASELINES.items()}
AVERAGE = "Average"
SIZES = {"Classes": "classes", "Training Size": "train", "Testing Size": "test"}
NEEDS_NO_RUN = {"partition", *SIZES.values()}  # measures of the data set
BLOCKS = {
    "dirichlet-0.1": "Dirichlet-based label skew (β = 0.1)",
    "dirichlet-0.05": "Dirichlet-based label skew (β = 0.05)",
    "quantity": "Quantity-based label skew",
}


def title(dataset: str) -> str:
    """Return the paper's name of a data set that is in the paper, otherwise the given name."""
    return TITLES.get(dataset, dataset)
