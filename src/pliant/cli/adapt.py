"""`pliant adapt`: from labelled images to a tested model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Context, Option

from pliant.cli.command import command
from pliant.errors import PliantError
from pliant.progress import say

_WHAT, _DATA, _TRAIN, _MACHINE = "What", "Data", "Training", "Machine"


def adapt(
    context: Context,
    data: Annotated[str | None, Argument(help="Folder of images, parquet file or folder, hf:NAME, or a name of `pliant data`.", show_default=False)] = None,
    model: Annotated[str, Option(help="pico, a timm name, org/name on the hub, or a local folder.", rich_help_panel=_WHAT)] = "pico",
    weights: Annotated[str | None, Option(help="Local safetensors file with the pretrained weights.", rich_help_panel=_WHAT)] = None,
    random_init: Annotated[bool, Option("--random-init", help="Train on random weights, knowingly.", rich_help_panel=_WHAT)] = False,
    img_size: Annotated[int | None, Option(help="Side of the input in pixels; the position grid is resampled.", rich_help_panel=_WHAT)] = None,
    method: Annotated[str, Option(help="adapter, lora, head, full, or a comma list of ln1,mha,ln2,fc1,fc2,embed.", rich_help_panel=_WHAT)] = "adapter",
    blocks: Annotated[str, Option(help="all, last:3, or indices such as 0,3,5-7.", rich_help_panel=_WHAT)] = "all",
    rank: Annotated[int | None, Option(help="Rank of adapters or LoRA (default 16).", rich_help_panel=_WHAT)] = None,
    alpha: Annotated[float | None, Option(help="Scale of adapters, or LoRA's alpha.", rich_help_panel=_WHAT)] = None,
    every: Annotated[int | None, Option(help="An adapter after every k-th block.", rich_help_panel=_WHAT)] = None,
    init: Annotated[str | None, Option(help="Adapters' up-projection: zero or small.", rich_help_panel=_WHAT)] = None,
    targets: Annotated[str | None, Option(help="LoRA's layers: a comma list of qkv,proj,fc1,fc2 (default qkv).", rich_help_panel=_WHAT)] = None,
    out: Annotated[str | None, Option(help="Run folder (default: a new one in runs/).", rich_help_panel=_WHAT)] = None,
    resume: Annotated[Path | None, Option(help="Continue the run in this folder.", rich_help_panel=_WHAT)] = None,
    seed: Annotated[int, Option(help="Fixes splits, initial values, order and augmentation.", rich_help_panel=_WHAT)] = 0,
    val_fraction: Annotated[float, Option(help="Share of the training images kept for validation.", rich_help_panel=_DATA)] = 0.1,
    limit_train: Annotated[int | None, Option(help="Use this many training images, label-balanced.", rich_help_panel=_DATA)] = None,
    limit_val: Annotated[int | None, Option(help="Use this many validation images (default: in proportion).", rich_help_panel=_DATA)] = None,
    limit_test: Annotated[int | None, Option(help="Use this many test images.", rich_help_panel=_DATA)] = None,
    max_corrupt: Annotated[float, Option(help="Share of unreadable images that is tolerated.", rich_help_panel=_DATA)] = 0.01,
    balanced: Annotated[bool, Option("--balanced", help="Draw classes equally often.", rich_help_panel=_DATA)] = False,
    augment: Annotated[str, Option(help="none, flip, or crop (random resized crop and flip).", rich_help_panel=_DATA)] = "none",
    views: Annotated[int | None, Option(help="Fixed augmented views an image, so that frozen outputs can be cached.", rich_help_panel=_DATA)] = None,
    epochs: Annotated[int | None, Option(help="Passes over the training images (default: the method's).", rich_help_panel=_TRAIN)] = None,
    batch_size: Annotated[int, Option(help="Images an update.", rich_help_panel=_TRAIN)] = 32,
    micro_batch: Annotated[int | None, Option(help="Images that run at a time; changes memory, not results.", rich_help_panel=_TRAIN)] = None,
    optimizer: Annotated[str, Option(help="adamw or sgd.", rich_help_panel=_TRAIN)] = "adamw",
    lr: Annotated[str | None, Option(help="Peak rate, or auto: a brief search on validation (default: the method's).", rich_help_panel=_TRAIN)] = None,
    head_lr: Annotated[str | None, Option(help="Peak rate of the new head, or same: as the body's (default: in the method's proportion).", rich_help_panel=_TRAIN)] = None,
    weight_decay: Annotated[float | None, Option(help="Of matrices; biases and norms get none.", rich_help_panel=_TRAIN)] = None,
    warmup: Annotated[float | None, Option(help="Share of the steps in which the rate rises.", rich_help_panel=_TRAIN)] = None,
    clip: Annotated[float, Option(help="Largest gradient norm; 0 is off.", rich_help_panel=_TRAIN)] = 1.0,
    label_smoothing: Annotated[float, Option(help="0 is off.", rich_help_panel=_TRAIN)] = 0.0,
    mixup: Annotated[float, Option(help="Alpha of mixup; 0 is off.", rich_help_panel=_TRAIN)] = 0.0,
    cutmix: Annotated[float, Option(help="Alpha of CutMix; 0 is off.", rich_help_panel=_TRAIN)] = 0.0,
    cache: Annotated[str, Option(help="Frozen outputs: auto, memory, file or off.", rich_help_panel=_MACHINE)] = "auto",
    precision: Annotated[str, Option(help="no, bf16 or fp16 (mixed precision).", rich_help_panel=_MACHINE)] = "no",
    device: Annotated[str, Option(help="auto, cpu, cuda or mps.", rich_help_panel=_MACHINE)] = "auto",
    checkpoint_minutes: Annotated[float, Option(help="Longest time between checkpoints.", rich_help_panel=_MACHINE)] = 2.0,
) -> None:  # fmt: skip
    """Adapt a backbone to labelled images; test it once; write a run folder with a report.

    [bold]Examples[/bold]

    pliant adapt ./flowers

    pliant adapt ./flowers --model vit_small_patch14_dinov2 --method mha --lr auto

    pliant adapt cifar10 --model vit_base_patch16_224.augreg_in21k --method lora --rank 8

    pliant adapt photos.parquet --model vit_small_patch14_dinov2 --weights dinov2.safetensors --img-size 112

    pliant adapt --resume runs/flowers-pico-adapter-1
    """
    given = {name: value for name, value in context.params.items() if name not in ("data", "resume")}
    if resume is not None:
        _continue(context, resume, data)
    elif data is None:
        raise PliantError("nothing to adapt to: give a folder of images or the name of a data set (`pliant data`)")
    else:
        start(data=data, **{**given, "lr": _rate("lr", lr, "auto"), "head_lr": _rate("head-lr", head_lr, "same")})


def start(**given: Any) -> None:
    """Run with these settings and print the closing lines; stopping is no failure, and says how to go on."""
    from pliant.adapt import run, settings

    chosen = settings(**given)
    _closing(lambda: run(chosen, command()))


def _continue(context: Context, folder: Path, data: str | None) -> None:
    from pliant.adapt import resume

    sources = {name: context.get_parameter_source(name) for name in context.params if name != "resume"}
    changed = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if changed or data:
        option = (changed or ["data"])[0].replace("_", "-")
        raise PliantError(
            f"--resume continues {folder} with the settings and the schedule it began with, so --{option} cannot be "
            "changed; start a new run with --out instead"
        )
    _closing(lambda: resume(folder))


def _closing(work: Callable[[], Path]) -> None:
    from pliant.adapt import Interrupted, headline

    try:
        folder = work()
    except Interrupted as stopped:
        say(f"stopped; continue with: pliant adapt --resume {stopped}")
        raise typer.Exit(130) from None
    if os.environ.get("RANK", "0") == "0":  # of several processes, one speaks
        for line in headline(folder):
            print(line)


def _rate(option: str, text: str | None, word: str) -> float | str | None:
    if text is None or text == word:
        return text
    try:
        return float(text)
    except ValueError:
        raise PliantError(f"--{option} {text!r}: give a number such as 1e-3, or {word}") from None
