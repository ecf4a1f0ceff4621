"""One short text for a frozen model: the same weights give the same text, whatever file they came from."""

from hashlib import sha256

from .frozen_clip import Clip


def fingerprint(clip: Clip) -> str:
    """A digest of all weights and of what else decides the features. Reads every weight once."""
    found = (getattr(module, "activate", None) for module in clip.modules())
    activations = sorted({str(getattr(activate, "__name__", activate)) for activate in found if activate is not None})
    whole = sha256(f"{clip.preprocess.key} {clip.logit_scale!r} {activations}".encode())
    for name, weight in sorted(clip.state_dict().items()):
        whole.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        whole.update(weight.detach().cpu().contiguous().numpy().data)
    return whole.hexdigest()[:16]
