"""The common corruptions of CIFAR-10-C (Hendrycks and Dietterich 2019, arXiv 1903.12261), for 32 x 32 pixels.

Written anew with NumPy, SciPy and Pillow, with the published severities. The packages that offer these corruptions have
ImageNet's severities for 224 pixels, which leave little of a small image, and draw from NumPy's global state, which
threads share.
"""

from pliant.data.corruptions import blur, digital, noise, spatter, weather  # noqa: F401  (fill the table)
from pliant.data.corruptions.table import CORRUPTIONS, REVISION, SEVERITIES, SIDE, corrupt

__all__ = ["CORRUPTIONS", "REVISION", "SEVERITIES", "SIDE", "corrupt"]
