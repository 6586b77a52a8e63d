"""Images small enough to stand inside the page."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 128
"""Longest side of a thumbnail, in pixels."""
TINY = 64
"""Images up to this side are kept pixel for pixel and enlarged by the browser without blurring."""


def is_tiny(image: Image) -> bool:
    return max(image.size) <= TINY


def data_uri(image: Image) -> str:
    """`image` as a data URI: PNG where it is tiny, else JPEG of at most `SIDE` px; transparency becomes white."""
    from PIL import Image as images

    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = images.alpha_composite(images.new("RGBA", layer.size, "white"), layer)
    image, kind = image.convert("RGB"), "png" if is_tiny(image) else "jpeg"
    if kind == "jpeg":
        image.thumbnail((SIDE, SIDE), images.Resampling.LANCZOS)
    # Metadata of the original (a place, a camera) does not belong on a page that is passed on.
    image.info.clear()
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": 85} if kind == "jpeg" else {}))
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
