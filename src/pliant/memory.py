"""Where the memory of a training goes, and keeping the C library from giving it back at every step."""

from __future__ import annotations

import ctypes
import sys

import torch
from torch import nn

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let glibc keep large freed buffers for reuse instead of unmapping them.

    A training step frees and takes the same hundreds of megabytes again; unmapped, each page faults and is zeroed
    anew, which costs a CPU step up to a tenth of its time (docs/speed.md).
    """
    if sys.platform != "linux":
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    except (OSError, AttributeError):  # another C library: only slower
        return


def peak_bytes(device: torch.device | None = None) -> int:
    """The most memory that this process (or the device) has held so far."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Memory:
    """Memory of a training in parts: weights, optimizer state, and the rest above the loaded model (activations,
    gradients, caches)."""

    def __init__(self, model: nn.Module):
        self.device = next(model.parameters()).device
        self.weights = _bytes(model.state_dict().values())
        self.loaded = peak_bytes(self.device)
        self.optimizer = 0
        self.peak = self.loaded

    def read(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = _bytes(v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v))
        self.peak = peak_bytes(self.device)

    def parts(self) -> dict[str, float]:
        """Megabytes of weights, optimizer state, activations and all else, and the peak of the whole."""
        rest = max(0, self.peak - self.loaded - self.optimizer)
        numbers = {"weights": self.weights, "optimizer": self.optimizer, "activations": rest, "peak": self.peak}
        return {name: round(value / 1e6, 1) for name, value in numbers.items()}


def _bytes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
