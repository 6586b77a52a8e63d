"""Images as people have them, with their classes, in splits that can be trusted."""

from pliant.data.decode import load_image
from pliant.data.images import ImageSet, load_batch
from pliant.data.listing import list_images
from pliant.data.opening import open_set, open_splits
from pliant.data.places import cache_folder, data_folder
from pliant.data.sources import SourceInfo, catalogue, register
from pliant.data.spec import absolute, place
from pliant.data.splits import Splits
from pliant.data.transforms import POLICIES, Preprocess

__all__ = [
    "POLICIES", "ImageSet", "Preprocess", "SourceInfo", "Splits",
    "absolute", "cache_folder", "catalogue", "data_folder", "list_images", "load_batch", "load_image",
    "open_set", "open_splits", "place", "register",
]  # fmt: skip
