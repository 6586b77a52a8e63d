"""Small data sets, made on the spot."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def picture(seed: int = 0, size: tuple[int, int] = (12, 10)) -> Image.Image:
    """A noisy RGB image of `size` (width, height)."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def fill(folder: Path, counts: dict[str, int], suffix: str = ".png") -> Path:
    """A folder of class folders with so many images each."""
    for number, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            picture(1000 * number + index).save(folder / name / f"{index:03}{suffix}")
    return folder


def write_parquet(path: Path, images, labels, *, names=None, columns=("image", "label"), struct=True) -> Path:
    """A parquet file, with Hugging Face's description of its columns where `names` are given."""
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if struct else pa.binary()
    cells = [value if isinstance(value, dict | None.__class__) else {"bytes": value, "path": None} for value in images]
    column = pa.array(cells if struct else list(images), kind)
    table = pa.table({columns[0]: column, columns[1]: pa.array(labels)})
    if names is not None:
        features = {columns[0]: {"_type": "Image"}, columns[1]: {"_type": "ClassLabel", "names": list(names)}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    return fill(tmp_path / "flowers", {"daisy": 20, "rose": 30, "tulip": 10})


@pytest.fixture
def data_home(tmp_path: Path, monkeypatch) -> Path:
    """An empty folder of named data sets."""
    folder = tmp_path / "named"
    folder.mkdir()
    monkeypatch.setenv("PLIANT_DATA", str(folder))
    return folder
