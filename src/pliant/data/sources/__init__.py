"""Where images come from. One file a source; `register` adds one."""

from pliant.data.sources import cifar, fashion_mnist, torchvision_sets
from pliant.data.sources.corrupted import Corrupted
from pliant.data.sources.digits import Digits
from pliant.data.sources.extracted import DomainNet, ImageNetR, TinyImageNet
from pliant.data.sources.hub import Hub
from pliant.data.sources.image_folder import ImageFolders
from pliant.data.sources.parquet import Parquet
from pliant.data.sources.registry import Opened, Source, SourceInfo, catalogue, open_source, register

_BUILT_IN: tuple[Source, ...] = (
    ImageFolders(), Parquet(), Hub(), Digits(), *cifar.SETS, Corrupted(), fashion_mnist.SET,
    *torchvision_sets.SETS, TinyImageNet(), ImageNetR(), DomainNet(),
)  # fmt: skip

# Asked in reverse order: names before paths, and folders of a known layout before plain ones.
for _source in _BUILT_IN:
    register(_source)

__all__ = ["Opened", "Source", "SourceInfo", "catalogue", "open_source", "register"]
