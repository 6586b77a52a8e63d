"""The whole job of `pliant plasticity`: from names to a measured, saved and drawn result."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from pliant import backbone
from pliant.adapt.learned import CONFIG, load_adapted, load_backbone
from pliant.backbone.text_models import is_text_model, load_text_model, load_tokenizer
from pliant.data import Preprocess
from pliant.data.text import absolute_text, is_text, open_text
from pliant.errors import PliantError
from pliant.measure.inputs import Stream, image_streams, text_streams
from pliant.measure.measurement import LOCAL, plasticity, weight_bounds
from pliant.measure.result import Plasticity, compare
from pliant.progress import Live, say

SEQUENCE = 128
BASE = "backbone"
"""Folder, beside the measurement of an adapted model, of that of its backbone."""


@dataclass(frozen=True)
class Settings:
    """What `pliant plasticity` was asked for; the command's options of the same names say what they mean."""

    model: str
    downstream: str
    pretrain: str | None = None
    weights: str | None = None
    img_size: int | None = None
    random_init: bool = False
    tokenizer: str | None = None
    sequence_length: int | None = None
    protocol: str = "in-situ"
    estimator: str = "cyclic"
    precision: float | None = 0.01
    images: int | None = None
    block: int | None = None
    local: int = LOCAL
    radius: str | float = "max"
    seed: int = 0
    max_corrupt: float = 0.01
    device: str = "auto"


@dataclass(frozen=True)
class Measured:
    """A measurement and, of an adapted model, that of its backbone on the same images (unless it was stopped)."""

    after: Plasticity
    before: Plasticity | None = None


def measure(chosen: Settings, command: str | None = None) -> Measured:
    """Measure what the settings name.

    Raises:
        PliantError: a model or data that cannot be had or do not go together, and all that `plasticity` raises.
    """
    _check(chosen)
    if not _is_adapted(chosen.model):
        return Measured(_one(_load(chosen), chosen, command, "measuring"))
    backbone, adapted = load_backbone(chosen.model), load_adapted(chosen.model)
    before = _one(backbone, chosen, command, "its backbone")
    if before.summary["stopped"]:
        same = replace(chosen, images=before.summary["images"])
        return Measured(_one(adapted, same, command, "the adapted model"), before)
    after = _one(adapted, chosen, command, "the adapted model")
    # The same images for both: the one that was precise sooner is measured on as many as the other.
    same = replace(chosen, images=max(each.summary["images"] for each in (before, after)), precision=None)
    if after.summary["stopped"]:
        same = replace(same, images=after.summary["images"])
    if before.summary["images"] != same.images:
        before = _one(backbone, same, command, "its backbone")
    if after.summary["images"] != same.images:
        after = _one(adapted, same, command, "the adapted model")
    return Measured(after, before)


def bounds(chosen: Settings) -> pd.DataFrame:
    """Upper bounds by block and component, with the largest measured rate beside them where `downstream` is given."""
    if chosen.downstream:
        _check(chosen)
        rows = _one(_load(chosen), chosen, None, "measuring").blocks()
        columns = ["protocol", "block", "component", "bound", "largest"]
        return rows[columns].assign(tightness=rows["bound"] / rows["largest"])
    model = _load(chosen)
    if is_text_model(chosen.model):
        inputs = torch.zeros(1, chosen.sequence_length or SEQUENCE, dtype=torch.int64)
    else:
        size = backbone.identity_of(model).img_size
        inputs = torch.zeros(1, 3, size, size)
    return weight_bounds(model, inputs, chosen.radius)


def _is_adapted(name: str) -> bool:
    return any((Path(name) / folder / CONFIG).is_file() for folder in ("", "learned"))


def _check(chosen: Settings) -> None:
    """Raises PliantError where options contradict the model or each other, or lie out of range."""
    adapted = _is_adapted(chosen.model)
    if adapted and (chosen.weights or chosen.img_size or chosen.random_init):
        raise PliantError(f"{chosen.model} brings its weights and image size; leave these options out")
    if not 0 <= chosen.max_corrupt <= 1:
        raise PliantError(f"--max-corrupt {chosen.max_corrupt:g}: is a share, from 0 to 1")
    if chosen.img_size is not None and chosen.img_size < 1:
        raise PliantError(f"--img-size {chosen.img_size}: must be at least 1")
    reads_text = not adapted and is_text_model(chosen.model)
    if reads_text and chosen.img_size:
        raise PliantError(f"--img-size {chosen.img_size}: {chosen.model} reads text; leave it out")
    wants = "text, so give text:FILE" if reads_text else "images, so give a folder of images or the name of a data set"
    for option, spec in (("--pretrain", chosen.pretrain), ("--downstream", chosen.downstream)):
        if spec is not None and is_text(spec) != reads_text:
            raise PliantError(f"{option} {spec}: {chosen.model} reads {wants}")


def _load(chosen: Settings) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chosen.seed)  # random weights, where they are asked for
        return _load_seeded(chosen)


def _load_seeded(chosen: Settings) -> nn.Module:
    if _is_adapted(chosen.model):
        return load_adapted(chosen.model)
    if is_text_model(chosen.model):
        weights = Path(chosen.weights) if chosen.weights else None
        return load_text_model(chosen.model, weights=weights, random_init=chosen.random_init)
    model = backbone.load(
        chosen.model, weights=chosen.weights, img_size=chosen.img_size, random_init=chosen.random_init
    )
    for note in backbone.identity_of(model).notes:
        say(f"note: {note}")
    return model


def _one(model: nn.Module, chosen: Settings, command: str | None, what: str) -> Plasticity:
    device = _device(chosen.device)
    streams = _streams(model, chosen)
    live = Live()
    started = time.monotonic()
    found = plasticity(
        model.to(device), *streams, protocol=chosen.protocol, estimator=chosen.estimator, precision=chosen.precision,
        block=block_size(model, streams[0]) if chosen.block is None else chosen.block, images=chosen.images, local=chosen.local,
        radius=chosen.radius, progress=lambda line: live.show(f"{what}: {line}"),
    )  # fmt: skip
    live.clear()
    notes = _notes(found, streams, chosen)
    for note in notes:
        say(f"note: {note}")
    identity = None if is_text_model(chosen.model) else backbone.identity_of(model)
    summary = {
        **found.summary,
        "model": identity.name if identity else chosen.model,
        "weights": identity.weights if identity else chosen.weights,
        "img_size": identity.img_size if identity else None,
        "pretrain": streams[0].name,
        "downstream": streams[1].name,
        "command": command,
        "settings": asdict(chosen),
        "notes": notes,
        "seconds": round(time.monotonic() - started, 2),
    }
    return replace(found, summary=summary)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise PliantError(f"--device {name}: not available here ({str(error).splitlines()[0]})") from error


def _streams(model: nn.Module, chosen: Settings) -> tuple[Stream, Stream]:
    if not is_text(chosen.downstream):
        preprocess = Preprocess.from_dict(backbone.identity_of(model).preprocess)
        return image_streams(chosen.pretrain, chosen.downstream, preprocess, chosen.seed, chosen.max_corrupt)
    most = int(model.config.n_positions)  # type: ignore[union-attr, arg-type]
    length = min(SEQUENCE, most) if chosen.sequence_length is None else chosen.sequence_length
    if not 2 <= length <= most:
        raise PliantError(f"--sequence-length {length}: {chosen.model} takes 2 to {most} tokens")
    tokenizer = load_tokenizer(chosen.tokenizer or chosen.model)
    names = [absolute_text(name) for name in (chosen.pretrain or chosen.downstream, chosen.downstream)]
    sequences = [open_text(name, tokenizer, length) for name in names]
    words = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    if max(int(each.max()) for each in sequences) >= words:
        raise PliantError(
            f"the tokenizer knows more than the {words} tokens of {chosen.model}; give its own with --tokenizer"
        )
    return text_streams(names, sequences, chosen.seed)


def block_size(model: nn.Module, stream: Stream) -> int:
    """Inputs a side that are measured together: few enough that a block's activations stay small.

    Speed is flat from 8 to 64 on a CPU (docs/plasticity.md), so memory decides: a quarter of a gigabyte.
    """
    from pliant import anatomy

    first = next(iter(stream), None)
    if first is None:
        raise PliantError(f"{stream.name}: not one image can be read ({stream.skipped[0]})")
    with torch.no_grad():
        tokens = anatomy.family_of(model).embed(model, first[:1].to(next(model.parameters()).device))
    # In float32, for both sides: inputs and outputs of the block's parts are some 14 times its input.
    return max(4, min(32, 2**28 // (2 * 4 * 14 * tokens.numel())))


def _notes(found: Plasticity, streams: tuple[Stream, Stream], chosen: Settings) -> list[str]:
    summary, notes = found.summary, []
    for stream in streams:
        if stream.skipped:
            notes.append(f"{stream.name}: {len(stream.skipped)} unreadable skipped, first {stream.skipped[0]}")
    if streams[0].name == streams[1].name:
        notes.append(f"no pretraining side: both sides are halves of {streams[1].name}")
    if summary["dropped"]:
        notes.append(f"{summary['dropped']} pairs of identical inputs dropped")
    if chosen.precision is not None and summary["reached"] > chosen.precision:
        why = "stopped" if summary["stopped"] else (
            f"--images {chosen.images} were measured" if chosen.images == summary["images"] else "the images ran out"
        )  # fmt: skip
        notes.append(
            f"{why} at {summary['images']} a side with half-widths of up to {summary['reached']:.2%}, "
            f"more than the {chosen.precision:.2%} asked for"
        )
    return notes


def save(measured: Measured, folder: Path) -> Path:
    """Write tables, summary, figure and page; of an adapted model, the backbone's into a folder inside."""
    from pliant import report

    if measured.before is not None:
        measured.before.save(folder / BASE)
    measured.after.save(folder)
    report.write_plasticity(folder, measured.before)
    return folder


def changes(measured: Measured) -> list[dict[str, Any]]:
    """What tuning changed, component by component; empty for a backbone."""
    from pliant.measure.result import records

    return [] if measured.before is None else records(compare(measured.before, measured.after))
