"""FedPHA: the projection and both distances by hand, and prompts of different lengths."""

import math

import numpy as np
import pytest
import torch

from fedcopl.errors import ConfigError
from fedcopl.methods import choose_method
from fedcopl.methods.base import Batch
from fedcopl.methods.fedpha import _project_on_minor_directions, _push, _used_rows
from methods.toolbox import CHOSEN, config_of, encoder, floats_of, learner_of, trained


def test_the_projection_by_hand():
    # Singular values 3, 2, 1 along the axes: the ratio 2/3 drops the first axis; the fourth has no singular vector.
    shared = torch.tensor([[3.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 0]])
    local = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    expected = torch.tensor([[0.0, 2, 3, 0], [0, 6, 7, 0]])
    torch.testing.assert_close(_project_on_minor_directions(local, shared, 2 / 3), expected)
    torch.testing.assert_close(_project_on_minor_directions(local, shared, 1.0)[:, 0], local[:, 0])


def test_the_ratio_determines_the_number_of_dropped_directions():
    for ratio, dropped in ((0.8, 1), (0.6, 2), (0.79, 1), (1, 0)):
        left = _project_on_minor_directions(torch.eye(5), torch.diag(torch.tensor([5.0, 4, 3, 2, 1])), ratio)
        assert int(left.diagonal().sum().round()) == 5 - dropped


def test_the_push_by_hand():
    # Distances 0 and sqrt(2): max(0, 1 - 0) and max(0, 1 - 1.41), mean 0.5.
    local, shared = torch.tensor([[1.0, 0], [1, 0]]), torch.tensor([[1.0, 0], [0, 1]])
    assert _push(local, shared, 1.0).item() == pytest.approx(0.5)
    assert _push(local, shared, 2.0).item() == pytest.approx((2 + 2 - math.sqrt(2)) / 2)


def test_the_loss_has_four_terms():
    learner = learner_of("fedpha")
    method, named = learner.model.method, learner.model.params(learner.initial())
    classes, shared = (encoder().class_features(named[name]) for name in ("local text", "global text"))
    images = torch.cat(learner.extractor.zero_shot_features())[:4].clone()
    losses = []

    def fit(logits):
        losses.append(logits)
        return torch.tensor(float(len(losses)))

    index, label = CHOSEN.index[:4], CHOSEN.label[:4]
    batch = Batch(encoder(), images, classes, named, index, label, None, lambda: images)
    total = method.loss(batch, fit)
    # First the global prompt, last the local one, whose probabilities are kept by losses on candidate sets.
    torch.testing.assert_close(losses[0], encoder().logits(images, shared))
    torch.testing.assert_close(losses[1], encoder().logits(images, classes))
    projected = encoder().class_features(_project_on_minor_directions(named["local text"], named["global text"], 0.8))
    pull = ((classes - projected) ** 2).sum() / classes.numel()
    torch.testing.assert_close(total, 1.0 + 2.0 + pull + _push(classes, shared, 1.0))


def test_predictions_are_by_the_local_prompt():
    ours, plain = learner_of("fedpha"), learner_of("promptfl")
    prompts = ours.initial()
    torch.testing.assert_close(ours.extractor.logits(prompts), plain.extractor.logits({"text": prompts["local text"]}))


def test_lengths_of_local_prompts_differ_between_clients():
    learners = [learner_of("fedpha", "options.shortest=4", "options.longest=20", number=number) for number in range(9)]
    lengths = [len(_used_rows(torch.tensor(one.initial()["local text"]))) for one in learners]
    assert len(set(lengths)) > 2
    assert min(lengths) >= 4
    assert max(lengths) <= 20
    assert len({one.initial()["global text"].tobytes() for one in learners}) == 1
    first, plain = learners[0], learner_of("promptfl")
    own = {"text": first.initial()["local text"][: lengths[0]]}
    torch.testing.assert_close(
        first.extractor.logits(first.initial()), plain.extractor.logits(own), atol=1e-4, rtol=1e-4
    )


def test_shortest_above_longest_is_refused():
    with pytest.raises(ConfigError, match=r"^options\.longest: must be 0 or at least options\.shortest, 4"):
        learner_of("fedpha", "options.longest=3")


def test_a_local_prompt_that_leaves_no_room_for_a_class_is_refused():
    with pytest.raises(ConfigError, match=r"class 'zero': its \d tokens and 80 context vectors are more than the 40"):
        learner_of("fedpha", "options.longest=80")


@pytest.mark.parametrize("pairs", [[], ["decay_to=init"], ["step=plain", "weight_decay=0.1"]])
def test_rows_beyond_the_length_stay_zero(pairs):
    learner = learner_of("fedpha", "options.longest=36", *pairs)
    before, after = learner.initial()["local text"], trained(learner)[0]["local text"]
    length = len(_used_rows(torch.tensor(before)))
    assert length < 36
    assert after.shape == (36, 128)
    assert (after[length:] == 0).all()
    assert (after[:length] != before[:length]).any()


def test_shared_and_personal_arrays():
    assert floats_of("fedpha") == ({"global text": 2048}, {"local text": 2048})
    assert floats_of("fedpha", "options.longest=8") == ({"global text": 2048}, {"local text": 8 * 128})


def test_both_prompts_start_differently():
    for init in ("neutral", "random"):
        first = choose_method(config_of("fedpha", f"init={init}")).start(encoder().clip, 10)
        assert not np.array_equal(first["global text"], first["local text"])
