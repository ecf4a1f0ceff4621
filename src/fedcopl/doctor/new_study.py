"""Write the folder of a new study: settings, a list of classes, folders for images, and a README."""

from pathlib import Path
from string import ascii_lowercase

from ..clip.known_models import check_model_name
from ..errors import ConfigError, ModelError
from ..files import check_output_folder, publish_text

_MAX_SITES = len(ascii_lowercase)
_SETTINGS = """\
# A federation of several sites, simulated on this machine. Run it inside this folder:  fedcopl run settings.toml
# Every other setting, with its default: docs/settings.md
name = "{name}"
rounds = 20  # of local training and averaging

[data]
source = "folder"
path = "images"  # images/clients/<site>/train/ holds a site's images, without labels
classes_file = "classes.txt"
partition = "natural"  # each site has the images in its folder

[model]
backbone = "{backbone}"  # a CLIP model by name, or the folder or file of one; see docs/models.md
template = "a photo of a {{}}"  # text of a class, {{}} for its name

[train]
epochs = 10  # over a site's selected images in each round
"""
_CLASSES = """\
cat
dog
"""
_README = """\
# {name}

1. Put each site's images into `images/clients/<site>/train/`. They need no labels.
2. Write the class names into `classes.txt`, one per line.
3. Put labelled images, if there are any, into `images/clients/<site>/test/<class>/`: they are only used to measure
   the accuracy.

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
_PLACEHOLDER = "Images of {site} go into this folder. This file may stay.\n"


def start_study(folder: Path, sites: int = 2, backbone: str = "ViT-B/32") -> list[Path]:
    """Write the folder of a new study and return its files; `RunFolderError` if the folder is not empty."""
    if not 1 <= sites <= _MAX_SITES:
        raise ConfigError(f"--sites: should be between 1 and {_MAX_SITES}, not {sites}")
    if any(char in '"\\' or not char.isprintable() for char in backbone):
        raise ConfigError(
            f"--backbone: {backbone!r} has a quotation mark, a backslash or an unprintable character; "
            "leave out --backbone and set model.backbone in the new settings.toml"
        )
    try:
        check_model_name(backbone)
    except ModelError as error:
        raise ConfigError(f"--backbone: {error}") from error
    check_output_folder(folder, new=True)
    # A relative path would not be valid inside the new folder.
    model = str(Path(backbone).resolve()) if Path(backbone).exists() else backbone
    name = "".join(char if char.isalnum() or char in "._-" else "-" for char in folder.resolve().name) or "study"
    written = {
        "settings.toml": _SETTINGS.format(name=name, backbone=model),
        "classes.txt": _CLASSES,
        "README.md": _README.format(name=name),
    }
    for letter in ascii_lowercase[:sites]:
        site = f"site-{letter}"
        written[f"images/clients/{site}/train/put-images-here.txt"] = _PLACEHOLDER.format(site=site)
    for name, text in written.items():
        publish_text(folder / name, text)
    return [folder / name for name in written]
