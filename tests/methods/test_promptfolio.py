"""PromptFolio: a mixture of two prompts' class features, by hand and by its limits."""

import numpy as np
import torch

from fedcopl.methods import choose_method
from methods.toolbox import config_of, floats_of, learner_of, trained


class TwoPrompts:
    """Stands in for the encoder: the class features are the prompt itself."""

    def class_features(self, context):
        return context


def test_the_mixture_by_hand():
    method = choose_method(config_of("promptfolio", "options.theta=0.25"))
    named = {"global text": torch.tensor([[1.0, 0.0]]), "local text": torch.tensor([[0.6, 0.8]])}
    # 0.75 (1, 0) + 0.25 (0.6, 0.8)
    torch.testing.assert_close(method.class_features(TwoPrompts(), named), torch.tensor([[0.9, 0.2]]))


def test_without_the_local_prompt_it_is_promptfl():
    ours, plain = learner_of("promptfolio", "options.theta=0"), learner_of("promptfl")
    text = plain.initial()["text"]
    both = {"global text": text, "local text": np.roll(text, 1, 0)}
    torch.testing.assert_close(ours.extractor.logits(both), plain.extractor.logits({"text": text}))
    one, other = ours.extractor.logits(both), learner_of("promptfolio", "options.theta=0.5").extractor.logits(both)
    assert not torch.allclose(one, other)


def test_both_prompts_differ_before_and_after_training():
    for init in ("neutral", "random"):
        learner = learner_of("promptfolio", f"init={init}")
        for prompts in (learner.initial(), trained(learner)[0]):
            assert (prompts["global text"] != prompts["local text"]).any()


def test_shared_and_personal_arrays():
    assert floats_of("promptfolio") == ({"global text": 2048}, {"local text": 2048})
