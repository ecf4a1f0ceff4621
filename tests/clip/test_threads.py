"""How many threads a model gets."""

from fedcopl.clip.device import threads_for
from fedcopl.config import Model


def test_the_built_in_model_has_one_thread_by_default():
    assert threads_for(Model()) == 1
    assert threads_for(Model(threads=3)) == 3
    assert threads_for(Model(backbone="ViT-B/32")) == 0  # torch's choice
