"""Pretrain pico, the backbone that ships inside pliant: a ViT of half a million parameters on CIFAR-10.

    python recipes/pico/pretrain.py --data DATA/cifar10 --work build/pico --out src/pliant/assets

DATA/cifar10 holds `train.parquet` and `test.parquet` with Hugging Face Image and ClassLabel columns. All 50,000
training images are trained on with fixed settings; the test images are read once, after the last step, with the
weights as they are stored (fp16). A killed run goes on from the last epoch when the command is run again; a finished
one writes its files again.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer

MODEL = {
    "img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 5, "num_heads": 3, "num_classes": 10,
    "class_token": False, "global_pool": "avg",
}  # fmt: skip
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def main() -> None:
    options = _options()
    torch.manual_seed(options.seed)
    torch.set_flush_denormal(True)
    if options.threads:
        torch.set_num_threads(options.threads)
    images, labels, classes = read(options.data / "train.parquet")
    # A rate above zero makes timm build the dropping of tokens; it has no weights, so the state is that of MODEL.
    model = VisionTransformer(**MODEL, patch_drop_rate=options.patch_drop)
    whiten_patches(model, normalised(images[:5000]))
    place_positions(model)
    averaged = {name: value.clone() for name, value in model.state_dict().items()}
    optimizers = make_optimizers(model, options)
    first, began = load_checkpoint(options.work, model, averaged, optimizers), time.time()
    for epoch in range(first, options.epochs):
        loss = train_epoch(model, averaged, optimizers, images, labels, epoch, options)
        print(f"epoch {epoch + 1}/{options.epochs} loss {loss:.4f} {time.time() - began:.0f} s", flush=True)
        save_checkpoint(options.work, model, averaged, optimizers, epoch + 1)
    export(averaged, classes, options)


def train_epoch(model, averaged, optimizers, images, labels, epoch: int, options: argparse.Namespace) -> float:
    """One pass over the images in a new order; returns the mean loss.

    All that is random is a function of the seed, the epoch and the step, so a run that goes on from a checkpoint is,
    bit for bit, the run that was never stopped.
    """
    per_epoch = len(images) // options.batch
    generator = torch.Generator().manual_seed(options.seed * 1000 + epoch)
    # Dropping tokens halves the cost of most of the training; the last epochs see whole images.
    model.patch_drop.prob = options.patch_drop if epoch < options.epochs - options.whole else 0.0
    model.train()
    total = 0.0
    for index, chosen in enumerate(torch.randperm(len(images), generator=generator).split(options.batch)[:per_epoch]):
        step = epoch * per_epoch + index
        torch.manual_seed(options.seed + step)  # for the choice of the tokens that are dropped
        factor = rate_factor(step, options.warmup, options.epochs * per_epoch, options.decay * per_epoch)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = group["peak"] * factor
        batch = augment(normalised(images[chosen]), generator)
        loss = F.cross_entropy(model(batch), labels[chosen], label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        total += loss.item()
        decay = min(options.ema, (step + 2) / (step + 11))  # a short memory at first, to leave the start behind
        for name, value in model.state_dict().items():
            averaged[name].lerp_(value, 1 - decay)
    return total / per_epoch


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.parquet and test.parquet")
    parser.add_argument(
        "--work", type=Path, default=Path("build/pico"), help="folder of the checkpoint; remove it to start anew"
    )
    parser.add_argument("--out", type=Path, default=Path("src/pliant/assets"), help="where pico.* is written")
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--decay", type=int, default=9, help="last epochs, in which the rate falls linearly to zero")
    parser.add_argument("--whole", type=int, default=3, help="last epochs, in which no token is dropped")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3, help="AdamW's peak rate")
    parser.add_argument("--muon-lr", type=float, default=5e-3, help="Muon's peak rate, for the blocks' matrices")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--warmup", type=int, default=300, help="steps")
    parser.add_argument("--patch-drop", type=float, default=0.5, help="share of the tokens dropped in the other epochs")
    parser.add_argument("--ema", type=float, default=0.998, help="decay of the averaged weights, which are exported")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    return parser.parse_args()


def read(path: Path) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """All images as uint8 (N, 3, 32, 32), labels (N,), class names."""
    table = pq.read_table(path)
    image, label = table.column_names[:2]
    names = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"][label]["names"]
    files = (io.BytesIO(row["bytes"]) for row in table[image].to_pylist())
    pixels = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.tensor(table[label].to_pylist()), names


def normalised(images: torch.Tensor) -> torch.Tensor:
    return (images.float() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def augment(images: torch.Tensor, generator: torch.Generator, reach: int = 3) -> torch.Tensor:
    """Flips half of the images and shifts each by up to `reach` pixels, reflected at the border."""
    count = len(images)
    flipped = torch.rand(count, generator=generator) < 0.5
    images = torch.where(flipped[:, None, None, None], images.flip(-1), images)
    padded = F.pad(images, (reach,) * 4, mode="reflect")
    rows = torch.randint(0, 2 * reach + 1, (count, 1), generator=generator) + torch.arange(32)
    columns = torch.randint(0, 2 * reach + 1, (count, 1), generator=generator) + torch.arange(32)
    image, channel = torch.arange(count)[:, None, None, None], torch.arange(3)[:, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def whiten_patches(model: VisionTransformer, images: torch.Tensor) -> None:
    """Start the patch projection as a whitening of patches: each output one principal direction, both signs."""
    patches = F.unfold(images, 4, stride=4).transpose(1, 2).reshape(-1, 48)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T))
    filters = (vectors / (values + 1e-2).sqrt()).T
    with torch.no_grad():
        model.patch_embed.proj.weight.copy_(0.5 * torch.cat([filters, -filters]).view(96, 3, 4, 4))


def place_positions(model: VisionTransformer) -> None:
    """Start the positions as sines and cosines of row and column, so that neighbours are alike from the first step."""
    side, width = model.patch_embed.grid_size[0], model.embed_dim
    angles = torch.outer(torch.arange(side), 10.0 ** (-2 * torch.arange(width // 4) / (width // 4)))
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    rows, columns = waves[:, None].expand(-1, side, -1), waves[None].expand(side, -1, -1)
    with torch.no_grad():
        model.pos_embed.copy_(0.5 * torch.cat([rows, columns], dim=-1).view(1, side * side, width))


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised (K. Jordan 2024), in float32: torch's own works in bfloat16, which a CPU
    without bfloat16 units does ten times slower than all the rest of a step of this small model."""

    def __init__(self, params, lr: float, weight_decay: float, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalised(p.grad.lerp(buffer, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                # 0.2 sqrt(larger side): an update of the size that AdamW's would have, so rates compare.
                p.add_(update, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """Five Newton-Schulz steps towards the nearest (semi-)orthogonal matrix."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


def make_optimizers(model: VisionTransformer, options: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for all else."""
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    muon = Muon(matrices, lr=options.muon_lr, weight_decay=options.weight_decay)
    adamw = torch.optim.AdamW(
        [{"params": [p for p in rest if p.ndim > 1 and p.shape[0] != 1]},
         {"params": [p for p in rest if not (p.ndim > 1 and p.shape[0] != 1)], "weight_decay": 0.0}],
        lr=options.lr, weight_decay=options.weight_decay,
    )  # fmt: skip
    for optimizer in (muon, adamw):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adamw]


def rate_factor(step: int, warmup: int, steps: int, decay: int) -> float:
    """Share of the peak rate: linear warm-up, constant, linear to zero in the last `decay` of `steps`.

    Until the decay begins nothing depends on `steps`: a run may be resumed with other --epochs, and is then the run
    that would have been started with them.
    """
    return min(1.0, (step + 1) / warmup, (steps - step) / decay)


def save_checkpoint(folder: Path, model, averaged, optimizers, epoch: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"averaged.{name}": value for name, value in averaged.items()}
    for number, optimizer in enumerate(optimizers):
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{index}.{key}": torch.as_tensor(value) for key, value in state.items()}
    copies = {name: value.contiguous().clone() for name, value in tensors.items()}
    replace(folder / "checkpoint.safetensors", lambda new: save_file(copies, new, {"epoch": str(epoch)}))


def load_checkpoint(folder: Path, model, averaged, optimizers) -> int:
    path = folder / "checkpoint.safetensors"
    if not path.is_file():
        return 0
    tensors = load_file(path)
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    for name in averaged:
        averaged[name].copy_(tensors[f"averaged.{name}"])
    for number, optimizer in enumerate(optimizers):
        state: dict[int, dict] = {}
        for key, value in tensors.items():
            if key.startswith(f"optimizer.{number}."):
                _, _, index, field = key.split(".", 3)
                state.setdefault(int(index), {})[field] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    with safe_open(path, framework="pt") as file:
        return int(file.metadata()["epoch"])


def export(state: dict, classes: list[str], options: argparse.Namespace) -> None:
    """Write the weights as fp16 and their description, with the test accuracy of the weights as stored."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "pico.safetensors"
    stored = {name: value.half().contiguous() for name, value in state.items()}
    replace(path, lambda new: save_file(stored, new, {"format": "pt"}))
    right, count = test(load_file(path), options.data / "test.parquet")
    card = {
        "name": "pico",
        "timm": MODEL,
        "preprocess": {"size": 32, "mean": list(MEAN), "std": list(STD), "interpolation": "bicubic", "crop_pct": 1.0},
        "classes": classes,
        "parameters": sum(value.numel() for value in state.values()),
        "trained_on": "CIFAR-10, 50,000 training images",
        "command": command(options),
        "test_top1": right / count,
        "test_images": count,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    replace(options.out / "pico.json", lambda new: new.write_text(json.dumps(card, indent=2) + "\n"))
    print(f"test top-1 {right / count:.2%} of {count} images; wrote {path} ({path.stat().st_size / 1e6:.2f} MB)")


def test(state: dict, path: Path) -> tuple[int, int]:
    """How many images of the parquet file at `path` are classified right, and how many there are."""
    model = VisionTransformer(**MODEL).eval()
    model.load_state_dict(state)
    images, labels, _ = read(path)
    with torch.no_grad():
        logits = torch.cat([model(normalised(batch)) for batch in images.split(500)])
    return int((logits.argmax(1) == labels).sum()), len(labels)


def command(options: argparse.Namespace) -> str:
    """The command that makes these weights: every setting that bears on them, whatever the defaults become."""
    paths = ("data", "work", "out", "threads")
    settings = [f"--{name.replace('_', '-')} {value}" for name, value in vars(options).items() if name not in paths]
    return " ".join(["python recipes/pico/pretrain.py --data DATA/cifar10", *settings])


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside `path`, then put it there in one step: a reader or a killed run never meets half a file."""
    new = path.with_name("new-" + path.name)
    write(new)
    os.replace(new, path)


if __name__ == "__main__":
    main()
