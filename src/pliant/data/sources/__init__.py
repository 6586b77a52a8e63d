"""Where images come from. One file a source; `register` adds one."""

from pliant.data.sources.digits import Digits
from pliant.data.sources.image_folder import ImageFolders
from pliant.data.sources.parquet import Parquet
from pliant.data.sources.registry import Opened, Source, SourceInfo, catalogue, open_source, register

# Asked in reverse order: names before paths, and files of a standard layout before plain folders.
for _source in (ImageFolders(), Parquet(), Digits()):
    register(_source)

__all__ = ["Opened", "Source", "SourceInfo", "catalogue", "open_source", "register"]
