"""Where torch computes, and how precisely."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from threadpoolctl import ThreadpoolController

from ..config import Model
from ..errors import ConfigError
from .formats.hub import BUILT_IN

TORCHS_OWN = torch.get_num_threads()  # as many threads as it took when it was loaded
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # glibc's numbers of the two switches in malloc.h


def choose_device(name: str) -> torch.device:
    """The device of the setting `model.device`; refused when this machine does not have it."""
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if here[kind])
    if not here[name]:
        present = ", ".join(kind for kind, is_here in here.items() if is_here)
        raise ConfigError(f"model.device: torch finds no {name} on this machine (it has: {present})")
    return torch.device(name)


@dataclass(frozen=True)
class Arithmetic:
    """Where and how precisely the frozen towers compute. Prompts, losses and probabilities are float32 or more."""

    device: torch.device
    precision: str = "fp32"

    def towers(self) -> AbstractContextManager[object]:
        """The context in which the towers run."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16 if self.precision == "bf16" else torch.float16)

    @property
    def loss_scale(self) -> float:
        """Keeps small gradients above float16's floor; a power of two, so it changes no digit."""
        return 1024.0 if self.precision == "fp16" else 1.0


def choose_arithmetic(device: str, precision: str) -> Arithmetic:
    """The settings `model.device` and `model.precision`, refused where they would be slower than plain float32."""
    chosen = Arithmetic(choose_device(device), precision)
    why = _why_not(chosen)
    if why:
        raise ConfigError(f"model.precision: {precision} is refused: {why}; use fp32")
    return chosen


def _why_not(arithmetic: Arithmetic) -> str | None:
    match arithmetic.device.type, arithmetic.precision:
        case "cpu", "fp16":
            return "CPUs have no fast float16 arithmetic"
        case "cpu", "bf16" if not _cpu_multiplies_bf16():
            return "this CPU has neither AVX512-BF16 nor AMX, so bfloat16 would be several times slower"
        case "cuda", "bf16" if not torch.cuda.is_bf16_supported(including_emulation=False):
            return "this GPU has no bfloat16 arithmetic"
    return None


def _cpu_multiplies_bf16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def keep_freed_memory() -> None:
    """Let the C library keep large blocks instead of handing them back to the system after every operation.

    Each fresh block costs a page fault per 4 kB when it is first written, which on a CPU takes longer than the
    arithmetic of an activation. Only glibc has the switch; elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 2**30)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)


def threads_for(model: Model) -> int:
    """The setting `model.threads`; matrices as small as the embedded model's are multiplied sooner than shared out."""
    return model.threads or (1 if model.backbone in BUILT_IN else 0)


def use_threads(count: int) -> None:
    """CPU threads for torch; 0 takes its own choice, whatever a run before chose."""
    torch.set_num_threads(count or TORCHS_OWN)


@contextmanager
def threads_of_arithmetic(count: int) -> Iterator[None]:
    """Of torch, and of numpy's products of matrices, for a while.

    Several threads make numpy's small ones no faster, and many times slower where others want the processors too.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with ThreadpoolController().limit(limits=count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
