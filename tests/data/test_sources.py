"""Where images come from: folders, parquet, the hub, and data sets known by name."""

from __future__ import annotations

import json
import os
import unicodedata

import numpy as np
import pytest
from PIL import Image

from pliant.data import catalogue, open_set, open_splits
from pliant.data.sources import Opened, SourceInfo, open_source
from pliant.data.sources import registry as registry_module
from pliant.errors import PliantError

from .conftest import encoded, fill, picture, write_parquet


def keys(images):
    return [images.key(i) for i in range(len(images))]


def pictures(count: int) -> list[bytes]:
    return [encoded(picture(seed)) for seed in range(count)]


# Folders


def test_hidden_files_empty_classes_and_odd_files_are_ignored_with_a_note(flowers):
    (flowers / "empty").mkdir()
    (flowers / ".git").mkdir()
    (flowers / "rose" / ".thumb.png").write_bytes(b"x")
    (flowers / "rose" / "photo.heic").write_bytes(b"x")
    picture().save(flowers / "loose.png")
    os.mkfifo(flowers / "rose" / "pipe.png")
    splits = open_splits(str(flowers))
    assert splits.train.classes == ("daisy", "rose", "tulip")
    assert sum(map(len, splits.parts().values())) == 60
    text = "\n".join(splits.notes)
    for expected in (
        "1 class folder without images ignored (empty/)",
        "2 hidden files and folders ignored",
        "1 file of no supported image type ignored (1 .heic)",
        "1 image outside class folders ignored (such as loose.png)",
        "1 file that is no regular file ignored",
    ):
        assert expected in text


def test_class_names_and_images_beyond_ascii_and_deeper_folders(tmp_path):
    fill(tmp_path, {"gänseblümchen": 5, "雏菊/nah": 5})
    splits = open_splits(str(tmp_path))
    assert splits.train.classes == ("gänseblümchen", "雏菊")
    assert splits.train.image(len(splits.train) - 1).size == (12, 10)


def test_composed_and_decomposed_names_are_one_class(tmp_path):
    fill(tmp_path / "train", {unicodedata.normalize("NFD", "lärche"): 4, "ulme": 4})
    fill(tmp_path / "test", {unicodedata.normalize("NFC", "lärche"): 1})
    assert open_splits(str(tmp_path)).test.labels.tolist() == [0]


def test_a_class_may_be_called_train(tmp_path):
    fill(tmp_path, {"train": 5, "car": 5, "bus": 5})
    assert open_splits(str(tmp_path)).train.classes == ("bus", "car", "train")


def test_a_folder_beside_the_splits_is_ignored_with_a_note(tmp_path):
    fill(tmp_path / "train", {"a": 5, "b": 5})
    fill(tmp_path / "test", {"a": 5, "b": 5})
    (tmp_path / "annotations").mkdir()
    splits = open_splits(str(tmp_path))
    assert splits.train.classes == ("a", "b")
    assert any("annotations/ is no split" in note for note in splits.notes)


# Parquet


def test_class_label_columns_give_the_names(tmp_path):
    write_parquet(tmp_path / "train.parquet", pictures(12), [i % 2 for i in range(12)], names=["cat", "dog"])
    write_parquet(tmp_path / "test.parquet", pictures(4), [1, 1, 0, 1], names=["cat", "dog"])
    splits = open_splits(str(tmp_path))
    assert splits.train.classes == ("cat", "dog")
    assert keys(splits.test) == [f"test.parquet#{row}" for row in range(4)]
    assert splits.test.labels.tolist() == [1, 1, 0, 1]
    np.testing.assert_array_equal(np.asarray(splits.test.image(2)), np.asarray(picture(2)))


def test_shards_and_files_agree_by_name_not_by_order(tmp_path):
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", pictures(6), [0, 1] * 3, names=["cat", "dog"])
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet", pictures(6), [0, 1] * 3, names=["dog", "cat"])
    write_parquet(tmp_path / "data" / "validation-00000-of-00001.parquet", pictures(2), [0, 1], names=["dog", "cat"])
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", pictures(2), ["dog", "cat"])
    splits = open_splits(str(tmp_path))
    assert [splits.train.classes[label] for label in splits.train.labels] == ["cat", "dog"] * 3 + ["dog", "cat"] * 3
    assert splits.train.key(7) == "data/train-00001-of-00002.parquet#1"
    assert splits.val.labels.tolist() == [1, 0]
    assert splits.test.labels.tolist() == [1, 0]


@pytest.mark.parametrize(("labels", "classes"), [([10, 9] * 5, ("9", "10")), (["b", "a"] * 5, ("a", "b"))])
@pytest.mark.parametrize("columns", [("img", "fine_label"), ("Image", "Label"), ("photo_bytes", "target")])
def test_plain_columns(tmp_path, labels, classes, columns):
    file = write_parquet(tmp_path / "some.parquet", pictures(10), labels, columns=columns, struct=False)
    splits = open_splits(str(file))
    assert splits.train.classes == classes
    assert splits.train.labels.tolist() == [1, 0] * 3 or sorted(splits.train.labels.tolist()) == [0] * 3 + [1] * 3


def test_images_named_by_path_and_missing_labels(tmp_path):
    picture(3).save(tmp_path / "elsewhere.png")
    cells = [*pictures(7), {"bytes": None, "path": "elsewhere.png"}]
    file = write_parquet(tmp_path / "some.parquet", cells, [0, 1, 0, 1, 0, 1, None, 1], names=["a", "b"])
    images = open_set(str(file))
    assert len(images) == 7
    np.testing.assert_array_equal(np.asarray(images.image(6)), np.asarray(picture(3)))
    with pytest.raises(PliantError, match=r"none\.parquet#7: holds no image"):
        write_parquet(tmp_path / "none.parquet", [*pictures(7), None], [0, 1] * 4, names=["a", "b"])
        open_set(str(file.with_name("none.parquet")))


def test_unlabelled_published_test_images_count_as_none(tmp_path):
    write_parquet(tmp_path / "train.parquet", pictures(20), [i % 2 for i in range(20)], names=["a", "b"])
    write_parquet(tmp_path / "test.parquet", pictures(4), [-1] * 4, names=["a", "b"])
    splits = open_splits(str(tmp_path))
    assert all(key.startswith("train.parquet#") for key in keys(splits.test))
    assert any("4 images without a label ignored" in note for note in splits.notes)


def test_unused_class_names_are_no_classes(tmp_path):
    file = write_parquet(tmp_path / "a.parquet", pictures(10), [0, 2] * 5, names=["a", "never", "c"])
    splits = open_splits(str(file))
    assert splits.train.classes == ("a", "c")
    assert any("1 class without images ignored ('never')" in note for note in splits.notes)


def test_unreadable_parquet(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(PliantError, match=r"bad\.parquet: not readable as parquet"):
        open_splits(str(tmp_path / "bad.parquet"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [b"x"] * 4, "caption": list("abcd")}, "has no label column among its columns image, caption;"),
        ({"data": list("abcd"), "label": [0, 1] * 2}, "has no column of encoded images among its columns data, label;"),
        ({"image": [b"x"] * 4, "label": [0.5] * 4}, "has no label column among its columns image, label;"),
    ],
)
def test_parquet_without_the_columns(tmp_path, columns, message):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), tmp_path / "some.parquet")
    with pytest.raises(PliantError, match=message):
        open_splits(str(tmp_path / "some.parquet"))


def test_a_label_without_a_name(tmp_path):
    file = write_parquet(tmp_path / "beyond.parquet", pictures(4), [0, 1, 2, 7], names=["a", "b"])
    with pytest.raises(PliantError, match="label 7 has no name; its schema names 2 classes"):
        open_splits(str(file))


def test_parquet_of_splits_beside_parquet_of_none(tmp_path):
    for name in ("train", "more"):
        write_parquet(tmp_path / f"{name}.parquet", pictures(4), [0, 1] * 2, names=["a", "b"])
    with pytest.raises(PliantError, match=r"more\.parquet belongs to no split"):
        open_splits(str(tmp_path))


def test_shared_cifar(shared):
    splits = open_splits(str(shared / "data" / "cifar10"), limit_train=50, limit_test=20)
    assert splits.train.classes[:2] == ("airplane", "automobile")
    assert [len(part) for part in splits.parts().values()] == [50, 10, 20]
    assert splits.train.image(0).size == (32, 32)


# The hub


def test_hub(monkeypatch):
    import datasets

    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})

    def made(count):
        rows = {"img": [picture(i) for i in range(count)], "label": [i % 2 for i in range(count)]}
        return datasets.Dataset.from_dict(rows, features=features)

    asked = []

    def load_dataset(*arguments):
        asked.append(arguments)
        reordered = made(12).select(range(11, -1, -1))
        return datasets.DatasetDict({"train": reordered, "test": made(4), "unsupervised": made(2)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    splits = open_splits("hf:someone/some:config")
    assert asked == [("someone/some", "config")]
    assert len(splits.train) + len(splits.val) == 12
    assert keys(splits.test) == ["test#0", "test#1", "test#2", "test#3"]
    np.testing.assert_array_equal(np.asarray(splits.test.image(3)), np.asarray(picture(3)))
    assert any("split unsupervised ignored" in note for note in splits.notes)
    assert keys(open_splits("hf:someone/some:config", stored=splits.to_dict()).train) == keys(splits.train)


def test_hub_unreachable(monkeypatch):
    import datasets

    def load_dataset(*_):
        raise ConnectionError("Couldn't reach the hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = "hf:some: cannot be had .* a folder of images or a parquet file works"
    with pytest.raises(PliantError, match=message) as error:
        open_splits("hf:some")
    assert "\n" not in str(error.value)
    with pytest.raises(PliantError, match="names no data set"):
        open_splits("hf:")


# By name


def test_digits():
    one, other = open_splits("digits", seed=0), open_splits("digits", seed=1)
    assert keys(one.test) == keys(other.test)
    assert keys(one.train) != keys(other.train)
    assert one.train.classes == tuple("0123456789")
    assert sum(map(len, one.parts().values())) == 1797
    assert one.train.image(0).size == (8, 8)
    assert max(np.asarray(one.train.image(i)).max() for i in range(20)) == 255


def write_cifar10(folder):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    (folder / "batches.meta.txt").write_text("airplane\nautomobile\n\n")
    written = {}
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        labels = np.arange(6, dtype=np.uint8) % 2
        planes = rng.integers(0, 256, (6, 3072), dtype=np.uint8)
        np.concatenate([labels[:, None], planes], axis=1).tofile(folder / f"{name}.bin")
        written[name] = planes
    return written


def test_cifar10_binary(data_home):
    written = write_cifar10(data_home / "cifar-10-batches-bin")
    splits = open_splits("cifar10")
    assert splits.train.classes == ("airplane", "automobile")
    assert len(splits.train) + len(splits.val) == 30
    expected = written["test_batch"][4].reshape(3, 32, 32).transpose(1, 2, 0)
    np.testing.assert_array_equal(np.asarray(splits.test.image(4)), expected)
    (data_home / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(PliantError, match="cifar10: damaged in .* no whole number of 3073-byte records"):
        open_splits("cifar10")


def test_cifar100_binary_has_two_labels_a_record(data_home):
    folder = data_home / "cifar-100-binary"
    folder.mkdir()
    (folder / "fine_label_names.txt").write_text("apple\nbee\n")
    records = np.zeros((20, 3074), dtype=np.uint8)
    records[:, 0], records[:, 1] = 7, np.arange(20) % 2
    for name in ("train", "test"):
        records.tofile(folder / f"{name}.bin")
    assert open_splits("cifar100").test.counts().tolist() == [10, 10]


def python2_batch(labels: list[int], planes: bytes, *, fortran: bool, label_key: bytes) -> bytes:
    """A pickle as Python 2 wrote CIFAR's: string opcodes that Python 3 no longer writes."""
    import pickle as p

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    # numpy's reconstruct call is reduced to what tells: the state with order and raw bytes.
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x02(K\x01" + (b"\x88" if fortran else b"\x89")
    array += b"T" + len(planes).to_bytes(4, "little") + planes + b"tq\x03b"
    numbers = b"]q\x04(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    other = text(b"batch_label") + text(b"x")
    return p.PROTO + b"\x02}q\x01(" + text(b"data") + array + text(label_key) + numbers + other + b"u."


@pytest.mark.parametrize("fortran", [False, True])
def test_cifar10_python_version_is_read_without_unpickling(data_home, monkeypatch, fortran):
    import pickle

    monkeypatch.setattr(pickle, "load", None)
    folder = data_home / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        planes = rng.integers(0, 256, (6, 3072), dtype=np.uint8)
        raw = planes.tobytes("F" if fortran else "C")
        (folder / name).write_bytes(python2_batch([0, 1] * 3, raw, fortran=fortran, label_key=b"labels"))
    meta = b"\x80\x02}q\x01(U\x13num_cases_per_batchq\x02M\x10'U\x0blabel_namesq\x03"
    meta += b"]q\x04(U\x08airplaneq\x05U\x03catq\x06eU\x07num_visq\x07M\x00\x0cu."
    (folder / "batches.meta").write_bytes(meta)
    splits = open_splits("cifar10")
    assert splits.train.classes == ("airplane", "cat")
    assert splits.test.labels.tolist() == [0, 1] * 3
    np.testing.assert_array_equal(np.asarray(splits.test.image(5)), planes[5].reshape(3, 32, 32).transpose(1, 2, 0))


def test_svhn(data_home):
    from unittest import mock

    from scipy.io import savemat

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
    for part in ("train", "test"):
        savemat(data_home / f"{part}_32x32.mat", {"X": pixels, "y": np.array([10, 1] * 10)[:, None]})
    with mock.patch("torchvision.datasets.SVHN._check_integrity", return_value=True):
        splits = open_splits("svhn")
    assert splits.train.classes == ("0", "1")
    assert splits.test.labels.tolist() == [0, 1] * 10
    np.testing.assert_array_equal(np.asarray(splits.test.image(3)), pixels[..., 3])


def test_pet(data_home):
    base = data_home / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    (base / "images").mkdir()
    for part in ("trainval", "test"):
        breeds = ((1, "Abyssinian"), (2, "great_pyrenees"))
        lines = [f"{name}_{part}{i} {label} 1 1" for i in range(4) for label, name in breeds]
        (base / "annotations" / f"{part}.txt").write_text("\n".join(lines) + "\n")
        for line in lines:
            picture().save(base / "images" / f"{line.split()[0]}.jpg")
    splits = open_splits("pet")
    assert len(splits.train.classes) == 2
    assert keys(splits.test)[0].startswith("oxford-iiit-pet/images/Abyssinian_test")


def test_food101(data_home):
    base = data_home / "food-101"
    (base / "meta").mkdir(parents=True)
    for part in ("train", "test"):
        listed = {name: [f"{name}/{part}{i}" for i in range(4)] for name in ("apple_pie", "waffles")}
        (base / "meta" / f"{part}.json").write_text(json.dumps(listed))
        for path in sum(listed.values(), []):
            (base / "images" / path).parent.mkdir(parents=True, exist_ok=True)
            picture().save(base / "images" / f"{path}.jpg")
    assert open_splits("food101").test.classes == ("apple_pie", "waffles")


def test_flowers102_has_its_own_three_splits(data_home):
    from unittest import mock

    from scipy.io import savemat

    base = data_home / "flowers-102"
    (base / "jpg").mkdir(parents=True)
    savemat(base / "imagelabels.mat", {"labels": np.array([[1, 2] * 6])})
    savemat(base / "setid.mat", {"trnid": [[1, 2, 3, 4]], "valid": [[5, 6]], "tstid": [[7, 8, 9, 10, 11, 12]]})
    for number in range(1, 13):
        picture().save(base / "jpg" / f"image_{number:05}.jpg")
    with mock.patch("torchvision.datasets.flowers102.check_integrity", return_value=True):
        splits = open_splits("flowers102")
    assert [len(part) for part in splits.parts().values()] == [4, 2, 6]
    assert splits.train.classes == ("pink primrose", "hard-leaved pocket orchid")


def test_aircraft(data_home):
    base = data_home / "fgvc-aircraft-2013b" / "data"
    (base / "images").mkdir(parents=True)
    (base / "variants.txt").write_text("707-320\n727-200\n")
    for part in ("trainval", "test"):
        names = [f"{part}{i}" for i in range(8)]
        variants = ["707-320", "727-200"] * 4
        lines = [f"{name} {variant}\n" for name, variant in zip(names, variants, strict=True)]
        (base / f"images_variant_{part}.txt").write_text("".join(lines))
        for name in names:
            picture().save(base / "images" / f"{name}.jpg")
    assert open_splits("aircraft").test.labels.tolist() == [0, 1] * 4


def write_tiny_imagenet(root):
    (root / "val" / "images").mkdir(parents=True)
    (root / "words.txt").write_text("n00000001\tgoldfish, Carassius auratus\nn00000002\tcrane\nn00000003\tcrane\n")
    for wnid in ("n00000001", "n00000002", "n00000003"):
        (root / "train" / wnid / "images").mkdir(parents=True)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("x")
        for number in range(4):
            picture().save(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG")
    lines = []
    for number, wnid in enumerate(("n00000003", "n00000001")):
        picture(number).save(root / "val" / "images" / f"val_{number}.JPEG")
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t9\t9\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "test" / "images").mkdir(parents=True)


@pytest.mark.parametrize("by_name", [True, False])
def test_tiny_imagenet(data_home, tmp_path, by_name):
    root = data_home / "tiny-imagenet-200" if by_name else tmp_path / "anywhere"
    write_tiny_imagenet(root)
    splits = open_splits("tiny-imagenet" if by_name else str(root))
    assert splits.train.classes == ("goldfish", "crane (n00000002)", "crane (n00000003)")
    assert splits.test.labels.tolist() == [2, 0]
    assert keys(splits.test) == ["val/images/val_0.JPEG", "val/images/val_1.JPEG"]


@pytest.mark.parametrize("by_name", [True, False])
def test_imagenet_r(data_home, by_name):
    root = fill(data_home / "imagenet-r", {"n01443537": 5, "n01484850": 5})
    (root / "README.txt").write_text("ImageNet-R\n\nn01443537 goldfish\nn01484850 great_white_shark\n")
    assert open_splits("imagenet-r" if by_name else str(root)).train.classes == ("goldfish", "great white shark")


@pytest.mark.parametrize("by_name", [True, False])
def test_domainnet(data_home, by_name):
    root = fill(data_home / "domainnet" / "sketch", {"ant": 6, "bear": 6}).parent
    for part, numbers in (("train", range(4)), ("test", (4, 5))):
        lines = [f"sketch/{name}/{i:03}.png {label}\n" for label, name in enumerate(("ant", "bear")) for i in numbers]
        (root / f"sketch_{part}.txt").write_text("".join(lines))
    splits = open_splits("domainnet:sketch" if by_name else str(root / "sketch"))
    assert splits.train.classes == ("ant", "bear")
    assert keys(splits.test) == [f"sketch/{name}/{i:03}.png" for name in ("ant", "bear") for i in (4, 5)]
    with pytest.raises(PliantError, match="name a domain, as in domainnet:sketch; there are clipart"):
        open_splits("domainnet")


@pytest.mark.parametrize("name", ["tiny-imagenet", "imagenet-r", "domainnet:real"])
def test_what_must_be_unpacked_by_hand_says_so(data_home, name):
    message = f"{name}: .* not found; unpack .* in {data_home}, or name the unpacked folder"
    with pytest.raises(PliantError, match=message):
        open_splits(name)


def test_a_failed_download_is_one_clear_error_and_leaves_nothing(data_home, monkeypatch):
    import torchvision.datasets.utils as utils

    def download(url, root, **_):
        with open(os.path.join(root, "half.tar.gz"), "wb") as file:
            file.write(b"half")
        raise RuntimeError("File not found or corrupted.")

    monkeypatch.setattr(utils, "download_and_extract_archive", download)
    message = "cifar10: cannot be downloaded .*; unpack https.* or name a folder of images"
    with pytest.raises(PliantError, match=message):
        open_splits("cifar10")
    assert list(data_home.iterdir()) == []


def test_a_download_is_moved_into_place_whole(data_home, monkeypatch):
    from pathlib import Path

    import torchvision.datasets.utils as utils

    monkeypatch.setattr(
        utils, "download_and_extract_archive", lambda url, root, **_: write_cifar10(Path(root) / "cifar-10-batches-bin")
    )
    assert len(open_splits("cifar10").test) == 6
    assert [path.name for path in data_home.iterdir()] == ["cifar-10-batches-bin"]


def test_ones_own_copy_of_a_named_set(data_home):
    for part in ("train", "test"):
        file = data_home / "cifar10" / f"{part}.parquet"
        write_parquet(file, pictures(20), [0, 1] * 10, names=["airplane", "automobile"], columns=("img", "label"))
    assert len(open_splits("cifar10").test) == 20
    assert next(line for line in catalogue() if line.name == "cifar10").present is True


def test_catalogue(data_home):
    lines = {line.name: line for line in catalogue()}
    named = {"cifar10", "cifar100", "svhn", "pet", "food101", "flowers102", "aircraft", "digits", "domainnet:sketch"}
    assert named | {"tiny-imagenet", "imagenet-r"} <= lines.keys()
    assert lines["digits"].present is True
    assert lines["cifar10"].present is False


def test_a_name_wins_over_a_folder_of_the_same_name_and_says_so(tmp_path, monkeypatch):
    fill(tmp_path / "digits", {"a": 5, "b": 5})
    monkeypatch.chdir(tmp_path)
    splits = open_splits("digits")
    assert len(splits.train.classes) == 10
    assert any("for the folder write ./digits" in note for note in splits.notes)
    assert open_splits("./digits").train.classes == ("a", "b")


def test_a_new_source_is_one_object(monkeypatch):
    class Noise:
        def matches(self, spec):
            return spec == "noise"

        def open(self, spec):
            return Opened({"all": open_set("digits", verify=False).named("noise")})

        def catalogue(self):
            return [SourceInfo("noise", 10, "noise", "made up", True)]

    monkeypatch.setattr(registry_module, "_sources", list(registry_module._sources))
    registry_module.register(Noise())
    assert open_splits("noise").train.name == "noise/train"
    assert open_source("noise").parts.keys() == {"all"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cifar1", r"'cifar1': no such folder, nor a data set of that name; did you mean cifar10"),
        ("zzzz", r"`pliant data` lists what can be named"),
        ("no/such/folder", r"no/such/folder: no such file or folder"),
        ("none.parquet", r"none\.parquet: no such file or folder"),
    ],
)
def test_unknown_names_and_paths(tmp_path, monkeypatch, spec, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PliantError, match=message):
        open_splits(spec)


def test_images_are_only_decoded_when_asked_for(flowers, monkeypatch):
    monkeypatch.setattr(Image, "open", None)
    assert len(open_splits(str(flowers), verify=False).train) > 0
