"""Other CLIPs than the built-in one through a whole run: sizes come from the checkpoint."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from clip.test_resnet import TINY, openai_weights, plain_resnet
from clip.tiny_clip import save_folder, tiny_model
from fedcopl.config import RunConfig, as_published, override
from fedcopl.simulation import assemble
from fedcopl.simulation.simulate import simulate
from small_digits import small_digits


@pytest.fixture
def few_digits(monkeypatch):
    """Random weights learn nothing: a few images show as much as all."""
    few = small_digits(60, 30)
    monkeypatch.setattr(assemble, "load_dataset", lambda data: few)


def run_with(backbone, folder):
    # As published: with priors no client would train on labels by random weights.
    settings = ["rounds=1", "clients=2", "epochs=1", f"backbone={backbone}"]
    config = override(as_published(), settings)
    results = simulate(RunConfig.from_mapping(config, "test"), folder)
    return results, load_file(folder / "prompts" / "server.safetensors")["visual"]


@pytest.mark.usefixtures("few_digits")
def test_a_checkpoint_of_transformers(tmp_path):
    model = tiny_model()
    results, visual = run_with(save_folder(tmp_path / "model", model), tmp_path / "run")
    vision = model.config.vision_config
    assert visual.shape == (vision.num_hidden_layers - 1, 5, vision.hidden_size)
    assert results.final.macro is not None


@pytest.mark.usefixtures("few_digits")
def test_a_resnet_gets_its_prompt_in_the_attention_pool(tmp_path):
    torch.save(openai_weights(plain_resnet(TINY), TINY["output"]), tmp_path / "RN.pt")
    results, visual = run_with(tmp_path / "RN.pt", tmp_path / "run")
    assert visual.shape[:2] == (1, 5)
    assert np.isfinite(visual).all()
    assert results.rounds[0].loss > 0
