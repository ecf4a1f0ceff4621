"""Device, precision, memory and CPU threads of torch."""

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from threadpoolctl import ThreadpoolController

from ..config import Model
from ..errors import ConfigError
from .known_models import BUILT_IN

_DEFAULT_THREADS = torch.get_num_threads()
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1  # as defined in glibc's malloc.h


@dataclass(frozen=True)
class Arithmetic:
    """Device and precision of the frozen towers. Prompts, losses and probabilities are float32 or float64."""

    device: torch.device
    precision: str = "fp32"

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context in which the towers run."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16 if self.precision == "bf16" else torch.float16)

    @property
    def loss_scale(self) -> float:
        """Factor of the loss that keeps float16 gradients from underflow; a power of two, so scaling is exact."""
        return 1024.0 if self.precision == "fp16" else 1.0


def choose_arithmetic(device: str, precision: str) -> Arithmetic:
    """Return the device and precision of the settings; the device `auto` is the fastest available one.

    Raises:
        ConfigError: The device is not available, or the precision would be slower on it than fp32.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        device = next(kind for kind, is_available in available.items() if is_available)
    if not available[device]:
        present = ", ".join(kind for kind, is_available in available.items() if is_available)
        raise ConfigError(f"model.device: torch finds no {device} on this machine (available: {present})")
    reason = None
    match device, precision:
        case "cpu", "fp16":
            reason = "CPUs have no fast float16 arithmetic"
        case "cpu", "bf16" if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
            reason = "this CPU has neither AVX512-BF16 nor AMX, so bfloat16 would be several times slower"
        case "cuda", "bf16" if not torch.cuda.is_bf16_supported(including_emulation=False):
            reason = "this GPU has no bfloat16 arithmetic"
    if reason:
        raise ConfigError(f"model.precision: {precision} is not available: {reason}; set model.precision=fp32")
    return Arithmetic(torch.device(device), precision)


def keep_freed_memory() -> None:
    """Configure glibc to keep freed memory: page faults of new blocks take longer than computing an activation."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries do not have it
        mallopt(_M_MMAP_THRESHOLD, 2**30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def threads_for(model: Model) -> int:
    """Return the setting `model.threads`; 0 becomes 1 for the built-in model, whose matrices are small."""
    return model.threads or (1 if model.backbone in BUILT_IN else 0)


def use_threads(count: int) -> None:
    """Set the number of torch's CPU threads; 0 restores its default."""
    torch.set_num_threads(count or _DEFAULT_THREADS)


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Limit the threads of torch and of NumPy's BLAS: on a busy machine, threads slow down small matrix products."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with ThreadpoolController().limit(limits=count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
