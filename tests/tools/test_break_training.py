"""The variants of the study of harmful training."""

from break_training import COMMON, VARIANTS
from fedcopl.config import RunConfig, override


def test_every_variant_keeps_the_hold_out_check():
    for variant in VARIANTS:
        pairs = [*COMMON, *(pair.format(ten=30) for pair in variant.settings)]
        assert RunConfig.from_mapping(override({}, pairs), variant.name).train.holdout > 0, variant.name
