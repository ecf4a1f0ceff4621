"""Several sentences for a class, and several names."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedcopl.clip.device import Arithmetic
from fedcopl.clip.encoder import Encoder
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.clip.wording import Wording
from fedcopl.config import RunConfig, override
from fedcopl.data.dataset import read_classes
from fedcopl.errors import ConfigError, DataError
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation.assemble import assemble


def encoder(classes, template) -> Encoder:
    return Encoder(load_clip("glyph-clip"), classes, template, Arithmetic(torch.device("cpu")))


def test_class_names_are_cleaned_once():
    assert Wording.of("a photo of a {}.").sentences(["sea_lake", " big  cat"]) == [
        ["a photo of a sea lake."],
        ["a photo of a big cat."],
    ]
    assert Wording.of("a {}").sentences(["{0}"]) == [["a {0}"]]


def test_every_name_of_a_class_goes_into_every_sentence():
    wording = Wording.of("a photo of a {} | {}, drawn | cat = kitten | cat = feline | cat = kitten")
    assert wording.sentences(["dog", "cat"]) == [
        ["a photo of a dog", "dog, drawn"],
        [
            "a photo of a cat",
            "cat, drawn",
            "a photo of a kitten",
            "kitten, drawn",
            "a photo of a feline",
            "feline, drawn",
        ],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a photo", r"must have \{\} where the class name goes \(given: 'a photo'\)"),
        ("a {} | a photo", r"must have \{\} where the class name goes \(given: 'a photo'\)"),
        ("cat = kitten | dog = hound", r"has no sentence with \{\}"),
        ("a {} | bird = robin", "has a synonym for 'bird', which is not one of the classes"),
    ],
)
def test_an_invalid_template_is_refused_by_its_text(text, message):
    with pytest.raises(ConfigError, match=message):
        Wording.of(text).sentences(["cat", "dog"])


def test_a_class_is_the_mean_direction_of_its_sentences():
    """As in CLIP's paper: the normalised mean of the normalised features of the sentences."""
    templates = ("a photo of a {}", "the number {}")
    several = encoder(["one", "two"], " | ".join((*templates, "two = pair"))).class_features(None)
    alone = torch.stack([encoder(["one", "two", "pair"], template).class_features(None) for template in templates])
    one, two, pair = alone.sum(0)
    torch.testing.assert_close(several, F.normalize(torch.stack([one, two + pair]), dim=-1), rtol=1e-5, atol=1e-6)


def test_one_template_is_bit_identical_to_its_sentences():
    one = encoder(["one", "two"], "a photo of a {}")
    plain = F.normalize(one.clip.text(one.clip.sentences(["a photo of a one", "a photo of a two"])), dim=-1)
    assert torch.equal(one.class_features(None), plain)


def test_a_learnt_context_is_used_with_the_first_name_only():
    context = torch.randn(3, 128, generator=torch.Generator().manual_seed(0))
    several, one = (encoder(["one", "two"], text) for text in ("a {} | the {} | one = single", "a {}"))
    assert torch.equal(several.class_features(context), one.class_features(context))


def test_a_list_of_templates_is_joined_to_one_text():
    listed = RunConfig.from_mapping({"model": {"template": ["a photo of a {}", "a drawing of a {}"]}}, "test")
    assert listed.model.template == "a photo of a {} | a drawing of a {}"
    assert listed == RunConfig.from_mapping(
        override({}, ["model.template=a photo of a {} | a drawing of a {}"]), "test"
    )


def test_a_line_of_the_class_list_may_have_synonyms(tmp_path):
    file = tmp_path / "classes.txt"
    file.write_text("cat | kitten|house_cat\n\ndog\n")
    listed = read_classes(file)
    assert listed.names == ("cat", "dog")
    assert listed.synonyms == " | cat = kitten | cat = house cat"
    file.write_text("cat |\ndog\n")
    with pytest.raises(DataError, match="has an empty name"):
        read_classes(file)


def test_a_run_uses_synonyms_and_records_them(tmp_path):
    from PIL import Image

    for number in range(24):
        shade = np.full((32, 32, 3), 10 * number, np.uint8)
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(shade).save(tmp_path / "images" / f"{number}.png")
    (tmp_path / "images" / "classes.txt").write_text("one | single\ntwo\n")
    pairs = ["data.source=folder", f"data.path={tmp_path / 'images'}", "clients=2", "partition=iid", "min_train=2"]
    simulation = assemble(RunConfig.from_mapping(override({}, pairs), "test"), ProgressReporter())
    assert simulation.dataset.classes == ("one", "two")
    assert simulation.dataset.wording("") == "a photo of a {} | one = single"
