"""The steps of making photo-clip, with tiny random weights."""

import numpy as np
import pytest
import torch
from transformers import Dinov2Config, Dinov2Model

from fedcopl.clip.frozen_clip import load_clip
from make_photo_clip import (
    NamedClasses,
    accuracy_on_unseen,
    centre_positions,
    choose_strengths,
    distil,
    fit,
    ridge,
    save,
    vision_tower,
    whitening,
)


@pytest.fixture(scope="module")
def dino():
    """A DINOv2 of `transformers` with random weights; the initial LayerScale of 1 would not test the folding."""
    config = Dinov2Config(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, image_size=70, patch_size=14)
    model = Dinov2Model(config).eval()
    generator = torch.Generator().manual_seed(0)
    for value in model.parameters():
        value.data = 0.5 * torch.randn(value.shape, generator=generator)
    return model


def test_the_tower_is_dinov2_with_layer_scale_folded(dino):
    pixels = torch.randn(4, 3, 70, 70, generator=torch.Generator().manual_seed(1))
    mean, project = torch.randn(16), torch.randn(6, 16)
    tower = vision_tower(dino, dino.embeddings.position_embeddings[0], mean, project)
    with torch.no_grad():
        plain = dino(pixels).last_hidden_state[:, 0]
        torch.testing.assert_close(tower(tower.embed(pixels)), (plain - mean) @ project.T, atol=2e-5, rtol=1e-4)


def test_positions_are_the_centre_of_a_larger_grid():
    # By hand: columns 0 to 13, resized to 7 columns, are 0.5, 2.5, ..., 12.5; the central five begin at 2.5.
    columns = torch.arange(14.0).repeat(14)
    positions = torch.cat([torch.tensor([[100.0]]), columns[:, None]])
    centre = centre_positions(positions, grid=7, side=5)
    assert centre[0].item() == 100
    torch.testing.assert_close(centre[1:, 0].view(5, 5), torch.tensor([2.5, 4.5, 6.5, 8.5, 10.5]).expand(5, 5))


def test_ridge_by_hand():
    # Centred, E = (-1, 1) and T = (-2, 2): W = E.T / (E.E + 2) = 4 / (2 + 2) = 1; without the penalty it is 2.
    embeddings, targets = np.array([[0.0], [2.0]]), np.array([[1.0], [5.0]])
    penalised, plain = (ridge(embeddings, targets, strength) for strength in (2.0, 0.0))
    assert np.allclose(penalised(embeddings), [[2.0], [4.0]])
    assert np.allclose(plain(np.array([[3.0]])), [[7.0]])


def test_whitened_features_have_unit_covariance_within_classes():
    rng = np.random.default_rng(0)
    means, spread = rng.normal(size=(5, 4)), np.diag([5.0, 1.0, 0.2, 3.0])
    labels = np.repeat(np.arange(5), 400)
    features = means[labels] + rng.normal(size=(2000, 4)) @ spread
    mapped = whitening(features, labels, 4, shrink=0.0)(features)
    within = mapped - np.stack([mapped[labels == label].mean(axis=0) for label in range(5)])[labels]
    assert np.allclose(np.cov(within.T, bias=True), np.eye(4), atol=1e-9)


def linear_classes(classes=20):
    """Return classes whose image features are linear in their name embeddings; the first five have a superclass."""
    rng = np.random.default_rng(0)
    names = rng.normal(size=(classes, 3))
    labels = np.repeat(np.arange(classes), 10)
    features = (names @ rng.normal(size=(3, 8)))[labels] + 0.05 * rng.normal(size=(10 * classes, 8))
    members = np.arange(classes)[None] < 5
    return NamedClasses(features, labels, names, names[:5].mean(axis=0, keepdims=True), members)


def test_unseen_classes_are_predicted_from_their_names():
    classes = linear_classes()
    assert accuracy_on_unseen(classes, 3, 0.1, 0.3) > 0.8  # of four classes: chance is a quarter
    shuffled = NamedClasses(
        classes.features, classes.labels, classes.names[::-1], classes.superclasses, classes.members
    )
    assert accuracy_on_unseen(shuffled, 3, 0.1, 0.3) < 0.6
    shrink, strength = choose_strengths(classes, 3)
    assert accuracy_on_unseen(classes, 3, shrink, strength) >= accuracy_on_unseen(classes, 3, 0.1, 0.3)


def test_superclasses_of_held_out_classes_are_held_out_too():
    two = linear_classes().only(np.array([6, 9]))
    assert two.superclasses.shape == (0, 3)
    assert set(two.labels) == {0, 1}
    assert len(two.features) == 20


def test_the_written_folder_is_a_clip_that_the_program_reads(dino, tmp_path):
    images, sentences = fit(linear_classes(), 8, 0.1, 0.3)
    project = torch.randn(8, 16, generator=torch.Generator().manual_seed(2))
    vision = vision_tower(dino, dino.embeddings.position_embeddings[0], torch.zeros(16), project)
    targets = torch.tensor(sentences(linear_classes().names)).float()
    text = distil(["cat", "dog", "ship"], targets[:3], steps=2, batch=2, seed=0)
    save(tmp_path, vision, text)
    clip = load_clip(tmp_path)
    pixels = torch.randn(2, 3, 70, 70, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(clip.encode_image(pixels), vision(vision.embed(pixels)), atol=0.05, rtol=0.05)
        assert clip.encode_text(clip.tokenize(["a photo of a cat."])).shape == (1, 8)
    assert clip.logit_scale == pytest.approx(15, rel=1e-3)
    assert images.project.shape == (8, 8)
