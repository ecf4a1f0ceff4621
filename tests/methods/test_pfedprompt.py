"""pFedPrompt: a consensus in the text, a memory at each client. tests/methods/test_image_memory.py has the kernel."""

import numpy as np
import torch

from fedcopl.algorithm.select import Selection
from fedcopl.methods import choose_method
from fedcopl.methods.base import Batch
from methods.toolbox import CHOSEN, SETS, encoder, floats_of, learner_of, trained


def test_the_worked_example():
    # By hand: f = (1, 0), three keys with labels 0, 1, 1, W = ((.8, .6), (.6, .8)), s = 100
    from methods.toolbox import config_of

    method = choose_method(config_of("pfedprompt"))
    named = {
        "memory keys": torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]),
        "memory values": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]),
        "memory images": torch.tensor([5.0, 3.0, 8.0]),
    }
    f, scale = torch.tensor([[1.0, 0.0]]), encoder().clip.logit_scale
    classes = torch.tensor([[0.8, 0.6], [0.6, 0.8]]) * 100 / scale  # as if glyph-clip's scale were 100
    total = method.inference_logits(encoder(), f, classes, named)
    torch.testing.assert_close(total, torch.tensor([[81.0, 60.114890]]), atol=1e-4, rtol=0)
    # In training an image's own key, here of image 5, is left out: the memory then adds (0, 0.114890).
    logits_of_loss = []
    batch = Batch(encoder(), f, classes, named, np.array([5]), np.array([0]), None, lambda: f)
    in_training = choose_method(config_of("pfedprompt", "options.memory_in_training=true"))
    in_training.loss(batch, lambda logits: logits_of_loss.append(logits) or logits.sum())
    torch.testing.assert_close(logits_of_loss[0], torch.tensor([[80.0, 60.114890]]), atol=1e-4, rtol=0)


def test_without_weight_it_is_promptfl():
    plain, ours = learner_of("promptfl"), learner_of("pfedprompt", "options.memory_weight=0")
    assert trained(plain)[0]["text"].tobytes() == trained(ours)[0]["text"].tobytes()
    prompts = {**ours.initial(), **ours.build_memory(CHOSEN)}
    assert (ours.log_probabilities(prompts) == plain.log_probabilities(plain.initial())).all()


def test_training_uses_text_logits_only():
    learner = learner_of("pfedprompt")
    with_memory = {**learner.initial(), **learner.build_memory(CHOSEN)}
    after, _ = learner.train(with_memory, CHOSEN, 0)
    assert after["text"].tobytes() == trained(learner_of("promptfl"))[0]["text"].tobytes()
    assert after["memory keys"] is with_memory["memory keys"]


def test_the_memory_holds_the_most_confident_images_of_each_class():
    learner = learner_of("pfedprompt", "options.memory_per_class=2")
    kept = learner.build_memory(CHOSEN)
    assert kept["memory keys"].shape == (20, 128)
    assert kept["memory values"].sum(0).tolist() == [2.0] * 10
    features = learner.extractor.all_frozen_features()
    assert (kept["memory keys"][0] == features[0].numpy()).all()  # image 0 is the first of class 0


def test_candidate_sets_share_their_weight():
    kept = learner_of("pfedprompt").build_memory(SETS)
    assert np.allclose(kept["memory values"].sum(1), 1)
    assert set(np.unique(kept["memory values"])) == {0.0, 0.5, 1.0}


def test_different_memories_change_the_predictions_differently():
    learner = learner_of("pfedprompt")
    without_memory = learner.log_probabilities(learner.initial())
    one = learner.log_probabilities({**learner.initial(), **learner.build_memory(CHOSEN)})
    swapped = Selection(CHOSEN.index, CHOSEN.label[::-1].copy())
    other = learner.log_probabilities({**learner.initial(), **learner.build_memory(swapped)})
    assert not np.allclose(without_memory, one)
    assert not np.allclose(one, other)


def test_nothing_of_the_memory_is_shared():
    assert learner_of("pfedprompt").model.method.shared() == ("text",)
    assert "memory keys" not in learner_of("pfedprompt").model.method.shapes(encoder().clip, encoder().classes)


def test_a_memory_in_training_changes_what_is_learned():
    with_memory = learner_of("pfedprompt", "options.memory_in_training=true")
    prompts = {**with_memory.initial(), **with_memory.build_memory(CHOSEN)}
    after, _ = with_memory.train(prompts, CHOSEN, 0)
    assert (after["text"] != trained(learner_of("promptfl"))[0]["text"]).any()


def test_spatial_attention_adds_spatial_logits():
    # The attention itself is tested by hand in tests/methods/test_image_memory.py.
    from fedcopl.methods.pfedprompt import _spatial_logits
    from methods.toolbox import images

    learner = learner_of(
        "pfedprompt", "options.attention=spatial", "options.text_weight=0.5", "options.image_weight=0.1"
    )
    plain = learner_of("promptfl")
    tokens, classes = images().tokens(np.arange(60)), plain.model.cached_class_features(plain.initial())
    added = _spatial_logits(
        encoder().image_features(tokens).double().numpy(),
        encoder().patch_features(tokens).double().numpy(),
        classes.double().numpy(),
        scale=float(encoder().clip.logit_scale),
        text_weight=0.5,
        image_weight=0.1,
    )
    ours = learner.extractor.logits(learner.initial()).double().numpy()
    np.testing.assert_allclose(ours, plain.extractor.logits(plain.initial()).double().numpy() + added, atol=1e-3)
    assert trained(learner)[0]["text"].tobytes() == trained(plain)[0]["text"].tobytes()  # trained on text alone


def test_shared_and_personal_arrays():
    assert floats_of("pfedprompt") == ({"text": 2048}, {})
