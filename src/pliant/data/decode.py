"""The one decoder: whatever people keep as images, as RGB pixels the right way up."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from pliant.errors import PliantError

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)
"""Suffixes of files that are taken for images, in lower case. What a file holds is told by its content alone."""

# Named, so that a hostile file never reaches Pillow's rarer parsers (PostScript, icons and the like). JPEG covers MPO.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM")

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes an EXIF orientation."""


def load_image(source: str | Path | bytes) -> Image.Image:
    """Decode a file or its bytes to RGB: the first frame, turned upright, transparency on white.

    Raises:
        PliantError: missing, truncated, no image, or larger than Pillow's limit against decompression bombs.
    """
    return decode(source, "the image" if isinstance(source, bytes) else str(source))


def decode(source: str | Path | bytes | memoryview, name: str) -> Image.Image:
    """`load_image`, with the name that an error is to give."""
    try:
        file = source if isinstance(source, str | Path) else io.BytesIO(source)
        with Image.open(file, formats=_FORMATS) as image:
            image.load()
            return to_rgb(upright(image))
    except FileNotFoundError:
        raise PliantError(f"{name}: no such file") from None
    # A decoder fed with hostile bytes fails in many ways (OSError, ValueError, SyntaxError, struct.error, MemoryError).
    except Exception as error:
        raise PliantError(f"{name}: not readable as an image ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "no JPEG, PNG, GIF, BMP, TIFF, WebP or PNM"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "too many pixels, possibly a decompression bomb"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation; an unreadable EXIF block counts as none."""
    if image.format not in ("TIFF", "MPO") and not image.info.keys() & {"exif", "xmp", "XML:com.adobe.xmp"}:
        return image
    try:
        orientation = image.getexif().get(0x0112, 1)
    except Exception:
        return image
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB: deep greys are scaled to 8 bits, transparency is laid on white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy() if image.readonly else image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_bytes(image)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert(image.mode.upper()).convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _to_bytes(image: Image.Image) -> np.ndarray:
    """Grey values of 16 or 32 bits, or floats, as uint8 (H, W).

    The range is the type's (65,535 for 16 bits; 1 or 255 for floats), and the image's own where it exceeds that.
    """
    if image.mode == "F":
        values = np.nan_to_num(np.asarray(image, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        full = 1.0 if values.max(initial=0) <= 1 else 255.0
    else:
        values = np.asarray(image).astype(np.float64)
        full = 65535.0
    low, high = values.min(initial=0.0), values.max(initial=full)
    return np.round((values - low) * (255 / (high - low))).astype(np.uint8)
