"""Tiny-ImageNet, ImageNet-R and DomainNet from the folders that their archives unpack to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pliant.data.images import ImageSet
from pliant.data.listing import Ignored, images_below
from pliant.data.places import data_folder
from pliant.data.sources.image_folder import class_folders
from pliant.data.sources.registry import Opened, SourceInfo
from pliant.data.stores import FileStore
from pliant.errors import PliantError

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


class TinyImageNet:
    """`train/<id>/images/*.JPEG`, and validation images whose classes stand in `val/val_annotations.txt`.

    The published test images have no labels, so the validation images are what people test on.
    """

    def matches(self, spec: str) -> bool:
        return spec == "tiny-imagenet" or (Path(spec).expanduser() / "val" / "val_annotations.txt").is_file()

    def open(self, spec: str) -> Opened:
        root = data_folder() / "tiny-imagenet-200" if spec == "tiny-imagenet" else Path(spec).expanduser()
        _need(root / "train", spec, "unpack tiny-imagenet-200.zip")
        annotations = _lines(root / "val" / "val_annotations.txt", spec)
        names = _wordnet_names(root / "words.txt", "\t")
        train = [(f"train/{path}", path.split("/")[0]) for path in images_below(root / "train", Ignored())]
        val = [(f"val/images/{image}", label) for image, label, *_ in (line.split("\t") for line in annotations)]
        ids = sorted({label for _, label in train})
        classes = [names.get(label, label) for label in ids]
        return Opened(
            {
                "train": _listed(root, train, ids, classes, f"{spec}/train"),
                "val": _listed(root, val, ids, classes, f"{spec}/val"),
            }
        )

    def catalogue(self) -> list[SourceInfo]:
        present = (data_folder() / "tiny-imagenet-200" / "train").is_dir()
        how = "unpack tiny-imagenet-200.zip in the data folder, or name the folder"
        return [SourceInfo("tiny-imagenet", 200, "Tiny-ImageNet, 100,000 + 10,000 of 64x64", how, present)]


class ImageNetR:
    """Class folders by WordNet id, with their names in README.txt."""

    def matches(self, spec: str) -> bool:
        path = Path(spec).expanduser()
        return spec == "imagenet-r" or (path.name == "imagenet-r" and (path / "README.txt").is_file())

    def open(self, spec: str) -> Opened:
        root = data_folder() / "imagenet-r" if spec == "imagenet-r" else Path(spec).expanduser()
        _need(root, spec, "unpack imagenet-r.tar")
        images, _ = class_folders(root, root, spec)
        names = _wordnet_names(root / "README.txt", " ")
        classes = [names.get(label, label) for label in images.classes]
        return Opened({"all": ImageSet(spec, classes, images.labels, images.store)})

    def catalogue(self) -> list[SourceInfo]:
        how = "unpack imagenet-r.tar in the data folder, or name the folder"
        present = (data_folder() / "imagenet-r").is_dir()
        return [SourceInfo("imagenet-r", 200, "ImageNet-R, 30,000 renditions", how, present)]


class DomainNet:
    """`<domain>/<class>/*`, split by `<domain>_train.txt` and `<domain>_test.txt`: a path and a label a line."""

    def matches(self, spec: str) -> bool:
        path = Path(spec).expanduser()
        return spec.partition(":")[0] == "domainnet" or _list_beside(path, "train").is_file()

    def open(self, spec: str) -> Opened:
        path = Path(spec).expanduser()
        if spec.partition(":")[0] == "domainnet":
            domain = spec.partition(":")[2]
            if domain not in DOMAINS:
                raise PliantError(f"{spec}: name a domain, as in domainnet:sketch; there are {', '.join(DOMAINS)}")
            path = data_folder() / "domainnet" / domain
        _need(path, spec, f"unpack {path.name}.zip and put {path.name}_train.txt and {path.name}_test.txt beside it")
        train = [_image_and_class(line) for line in _lines(_list_beside(path, "train"), spec)]
        test = [_image_and_class(line) for line in _lines(_list_beside(path, "test"), spec)]
        classes = sorted({label for _, label in train})
        return Opened(
            {
                "train": _listed(path.parent, train, classes, classes, f"{spec}/train"),
                "test": _listed(path.parent, test, classes, classes, f"{spec}/test"),
            }
        )

    def catalogue(self) -> list[SourceInfo]:
        how = "unpack a domain and its two lists in domainnet/ in the data folder"
        here = data_folder() / "domainnet"
        return [SourceInfo(f"domainnet:{d}", 345, f"DomainNet, {d}", how, (here / d).is_dir()) for d in DOMAINS]


def _list_beside(domain: Path, part: str) -> Path:
    return domain.parent / f"{domain.name}_{part}.txt"


def _image_and_class(line: str) -> tuple[str, str]:
    """`sketch/zebra/sketch_345_000001.jpg 344` names an image of the class zebra."""
    path = line.rsplit(" ", 1)[0]
    return path, Path(path).parent.name


def _need(folder: Path, spec: str, how: str) -> None:
    if not folder.is_dir():
        raise PliantError(f"{spec}: {folder} not found; {how} in {data_folder()}, or name the unpacked folder")


def _lines(file: Path, spec: str) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise PliantError(f"{spec}: {file} cannot be read ({error})") from error


def _listed(
    root: Path, rows: Iterable[tuple[str, str]], ids: Sequence[str], classes: Sequence[str], name: str
) -> ImageSet:
    """A set of (path, class id) rows; a class id that training has not keeps its own name, to be reported by it."""
    paths, labels = zip(*sorted(rows), strict=True)
    every = [*ids, *sorted(set(labels) - set(ids))]
    index = {label: position for position, label in enumerate(every)}
    numbers = np.array([index[label] for label in labels], dtype=np.int64)
    return ImageSet(name, [*classes, *every[len(ids) :]], numbers, FileStore(root, paths))


def _wordnet_names(file: Path, separator: str) -> dict[str, str]:
    """WordNet id to its first word; ids whose first word is another's too keep both. Empty without the file."""
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8", errors="replace")
    pairs = re.findall(rf"^(n\d{{8}}){separator}([^,\n]+)", text, re.MULTILINE)
    words = {label: word.strip().replace("_", " ") for label, word in pairs}
    uses = Counter(words.values())
    return {label: word if uses[word] == 1 else f"{word} ({label})" for label, word in words.items()}
