"""A new study: settings, a list of classes, folders for images, and the next commands."""

from pathlib import Path
from string import ascii_lowercase

from ..clip.formats.hub import refuse_unknown
from ..errors import ConfigError, ModelError
from ..files import check_output_folder, publish_text

MOST_SITES = len(ascii_lowercase)
SETTINGS = """\
# A federation of several sites, simulated on this machine. Run it inside this folder:  fedcopl run settings.toml
# Every other setting, with its default: docs/settings.md
name = "{name}"
rounds = 20  # how often the sites' prompts are averaged

[data]
source = "folder"
path = "images"  # images/clients/<site>/train/ holds a site's images, without labels
classes_file = "classes.txt"
partition = "natural"  # each site holds what is in its folder

[model]
backbone = "{backbone}"  # a CLIP model by name, or the folder or file of one; see docs/models.md
template = "a photo of a {{}}"  # the sentence that describes a class, {{}} for its name

[train]
epochs = 10  # passes over a site's chosen images in each round
"""
CLASSES = """\
cat
dog
"""
README = """\
# {name}

1. Put each site's images into `images/clients/<site>/train/`. They need no labels.
2. Write the class names into `classes.txt`, one per line.
3. If some images have labels, put them into `images/clients/<site>/test/<class>/`: accuracy is measured on them, and
   they are used for nothing else.

Then, in this folder:

```sh
fedcopl doctor
fedcopl run settings.toml method=priors -o runs/priors    # no training: done in minutes
fedcopl run settings.toml -o runs/first
fedcopl review runs/first --client site-a                 # estimate accuracy from a few confirmed labels
fedcopl export runs/first --client site-a -o classifier-a
fedcopl predict FOLDER -c classifier-a -o predictions.csv # label new images
```

`runs/first/report.html` shows the results.
"""
PUT_HERE = "Images of {site} go into this folder. This file may stay.\n"


def start_study(folder: Path, sites: int = 2, backbone: str = "ViT-B/32") -> list[Path]:
    """Write the folder and return the new files; existing files are not changed."""
    if not 1 <= sites <= MOST_SITES:
        raise ConfigError(f"--sites: should be between 1 and {MOST_SITES}, not {sites}")
    if any(sign in '"\\' or not sign.isprintable() for sign in backbone):
        raise ConfigError(f"--backbone: {backbone!r} cannot be written into a settings file; edit the file by hand")
    try:
        refuse_unknown(backbone)
    except ModelError as error:
        raise ConfigError(f"--backbone: {error}") from error
    check_output_folder(folder, new=True)
    found = str(Path(backbone).resolve()) if Path(backbone).exists() else backbone  # the folder is not where we are
    written = dict(_files(_study_name(folder), sites, found))
    for name, text in written.items():
        publish_text(folder / name, text)
    return [folder / name for name in written]


def _files(name: str, sites: int, backbone: str) -> list[tuple[str, str]]:
    names = [f"site-{letter}" for letter in ascii_lowercase[:sites]]
    return [
        ("settings.toml", SETTINGS.format(name=name, backbone=backbone)),
        ("classes.txt", CLASSES),
        ("README.md", README.format(name=name)),
        *((f"images/clients/{site}/train/put-images-here.txt", PUT_HERE.format(site=site)) for site in names),
    ]


def _study_name(folder: Path) -> str:
    """Return the folder's name with only letters, digits, dots, dashes and underscores."""
    plain = "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in folder.resolve().name)
    return plain or "study"
