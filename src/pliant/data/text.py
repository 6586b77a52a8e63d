"""Text as sequences of one length, for language models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pliant.errors import PliantError

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "text:"
"""What a text file's name begins with where images could be meant."""


def is_text(spec: str) -> bool:
    return spec.startswith(PREFIX)


def absolute_text(spec: str) -> str:
    """The same text, wherever it is asked for."""
    return f"{PREFIX}{Path(spec.removeprefix(PREFIX)).expanduser().resolve()}"


def open_text(spec: str, tokenizer: Any, length: int) -> Tensor:
    """Token ids of a UTF-8 file, cut into sequences of `length` without padding; a rest that is shorter is left out.

    Returns:
        int64 (sequences, length).

    Raises:
        PliantError: no such file, not UTF-8, or shorter than two sequences.
    """
    import torch

    path = Path(spec.removeprefix(PREFIX))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PliantError(f"{spec}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PliantError(f"{path}: not readable as UTF-8 text ({error})") from error
    ids = tokenizer(text, return_attention_mask=False, verbose=False)["input_ids"]
    count = len(ids) // length
    if count < 2:
        raise PliantError(
            f"{path}: {len(ids)} tokens make {count} sequences of {length}, and two are the least; give more text"
        )
    return torch.tensor(ids[: count * length], dtype=torch.int64).reshape(count, length)
