"""What measuring plasticity costs: ours against the published procedure, and against the floor.

    python benchmarks/plasticity.py --weights vit_small_patch14_dinov2.safetensors --pretrain DATA/imagenet_sample \\
        --downstream DATA/cifar10

One model (ViT-S/14, 112 px), real images, decoded beforehand. The published procedure (arXiv 2602.06883) applies every
component of every block to the embeddings of both sides in two passes, keeps all outputs, and takes their distances on
the CPU. Each case runs in a process of its own, in rounds; the median is told. Memory is the peak above model and images. The
floor is the matrix products (attention alone under shared-input, the forward pass in situ) at this machine's rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from steps import MODEL, SIZE, THREADS, _status, matmul_rate

PAIRS, BLOCK = 64, 32
PUBLISHED = 12_800
"""Pairs that the published code takes by default."""
PRECISION = 0.01


def published(model, x, y):
    """Every component naively on the embeddings, two passes, outputs kept."""
    import torch
    from torch.nn.functional import pad

    embedded = [model._pos_embed(model.patch_embed(side)) for side in (x, y)]
    kept = []
    for tokens in embedded:
        wide = pad(tokens, (0, 3 * tokens.shape[-1]))
        kept.append([
            [block.norm1(tokens), block.attn(tokens), block.norm2(tokens), block.mlp.fc1(tokens), block.mlp.fc2(wide)]
            for block in model.blocks
        ])  # fmt: skip
    below = torch.linalg.norm((embedded[0] - embedded[1]).flatten(1), dim=1)
    return torch.stack([
        torch.stack([torch.linalg.norm((a - b).flatten(1), dim=1) / below for a, b in zip(*blocks, strict=True)])
        for blocks in zip(*kept, strict=True)
    ])  # fmt: skip


def ours(protocol: str, estimator: str) -> Callable:
    """What every pair costs. Bounds, which follow once from all of them, and the d x d matrices of the linear layers,
    which are made once before, are left out here; they are in the time to a precision."""
    kept: dict = {}

    def run(model, x, y):
        import torch

        from pliant import anatomy
        from pliant.measure import PROTOCOLS
        from pliant.measure.pairs import shifts_of, taken_pairs
        from pliant.measure.statistics import Moments

        if not kept:
            kept["protocol"] = PROTOCOLS[protocol](model)
        family, moments = anatomy.family_of(model), Moments(12 * len(kept["protocol"].series))
        for a, b in zip(x.split(BLOCK), y.split(BLOCK), strict=True):
            shifts = shifts_of(estimator, len(a))
            sample = kept["protocol"].measure(family.embed(model, torch.cat([a, b])), shifts)
            moments.add(sample, taken_pairs(shifts, len(a)))

    return run


def forward(model, x, y):
    for a, b in zip(x.split(BLOCK), y.split(BLOCK), strict=True):
        model.forward_features(a)
        model.forward_features(b)


def attention(model, x, y):
    """What shared-input cannot do without: the embedding, and every attention on it."""
    import torch

    for a, b in zip(x.split(BLOCK), y.split(BLOCK), strict=True):
        tokens = model._pos_embed(model.patch_embed(torch.cat([a, b])))
        for block in model.blocks:
            block.attn(tokens)


CASES: dict[str, Callable] = {
    "shared-input, published procedure": published,
    "shared-input, attention alone": attention,
    "shared-input, pliant, paired": ours("shared-input", "paired"),
    "shared-input, pliant, cyclic": ours("shared-input", "cyclic"),
    "shared-input, pliant, all pairs of 32": ours("shared-input", "all-pairs"),
    "in situ, the forward pass alone": forward,
    "in situ, pliant, paired": ours("in-situ", "paired"),
    "in situ, pliant, cyclic": ours("in-situ", "cyclic"),
    "in situ, pliant, all pairs of 32": ours("in-situ", "all-pairs"),
}
NAIVE = "shared-input, published procedure"


def floor(name: str, tokens: int = 65, width: int = 384, depth: int = 12) -> float:
    """GFLOPs of the matrix products of one pair of images."""
    attention = 2 * tokens * 4 * width**2 + 4 * tokens**2 * width
    mlp = 2 * tokens * 8 * width**2
    embed = 2 * (tokens - 1) * 3 * 14**2 * width
    block = attention if name.startswith("shared-input") else attention + mlp
    return 2 * (embed + depth * block) / 1e9


def setting(options: argparse.Namespace, images: int):
    """The model, and that many decoded images of either side."""
    import torch

    import pliant
    from pliant.backbone import identity_of
    from pliant.data import Preprocess
    from pliant.measure.inputs import image_streams

    torch.set_num_threads(THREADS)
    model = pliant.load(MODEL, weights=options.weights, num_classes=10, img_size=SIZE)
    streams = image_streams(
        options.pretrain, options.downstream, Preprocess.from_dict(identity_of(model).preprocess), 0
    )
    sides = []
    for stream in streams:
        held: list = []
        for batch in stream:
            held.append(batch)
            if sum(len(each) for each in held) >= images:
                break
        sides.append(torch.cat(held)[:images])
    return model, *sides


def case(name: str, options: argparse.Namespace) -> dict:
    """One case, in this process."""
    import torch

    model, x, y = setting(options, PAIRS)
    loaded = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
    with torch.no_grad():
        CASES[name](model, x[:BLOCK], y[:BLOCK])  # warm up
        started = time.perf_counter()
        CASES[name](model, x, y)
        seconds = time.perf_counter() - started
    return {"seconds": seconds / PAIRS, "memory_mb": (_status("VmHWM") - loaded) / 1024}


def precise(protocol: str, options: argparse.Namespace) -> dict:
    """Time and images to the wanted precision, or what all images reach; and what is done once, in `fixed`."""
    import pliant

    model, x, y = setting(options, 1000)

    def timed(images: int) -> dict:
        started = time.perf_counter()
        found = pliant.plasticity(
            model, x.split(BLOCK), y.split(BLOCK), protocol=protocol, precision=PRECISION, images=images, local=0,
            estimator=options.estimator,
        )  # fmt: skip
        return {"seconds": time.perf_counter() - started, **found.summary}

    timed(2)  # imports
    return {"fixed": timed(2)["seconds"], **timed(1000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--pretrain", required=True)
    parser.add_argument("--downstream", required=True)
    parser.add_argument("--estimator", default="cyclic", help="for the time to a precision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--precise", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(case(options.case, options)))
        return
    if options.precise:
        print(json.dumps(precise(options.precise, options)))
        return
    results: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "memory_mb": []} for name in CASES}
    for _ in range(options.rounds):
        for name in CASES:
            for key, value in child("--case", name).items():
                results[name][key].append(value)
    rate = matmul_rate()
    costs(results, rate)
    times(statistics.median(results[NAIVE]["seconds"]))


def child(option: str, value: str) -> dict:
    print(value, file=sys.stderr, flush=True)
    command = [sys.executable, *sys.argv, option, value]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def costs(results: dict[str, dict[str, list[float]]], rate: float) -> None:
    print(f"\n{MODEL}, {SIZE} px, {THREADS} threads; matrix products run at {rate:.0f} GFLOP/s\n")
    print(
        "| case | ms a pair | least | published / this | peak MB above the model | of published | floor ms | times the floor |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    naive = {key: statistics.median(values) for key, values in results[NAIVE].items()}
    for name, found in results.items():
        seconds, memory = (statistics.median(found[key]) for key in ("seconds", "memory_mb"))
        least = floor(name) / rate
        print(f"| {name} | {1000 * seconds:.1f} | {1000 * min(found['seconds']):.1f} | {naive['seconds'] / seconds:.1f} | "
              f"{memory:.0f} | {memory / naive['memory_mb']:.2f} | {1000 * least:.1f} | {seconds / least:.2f} |")  # fmt: skip


def times(naive: float) -> None:
    """To a half-width of 1 %, against the published default; what the images do not suffice for is extrapolated."""
    whole = naive * PUBLISHED
    print(f"\nThe published default of {PUBLISHED:,} pairs takes {whole:.0f} s here.\n")
    print("| protocol | images a side | half-width reached | s | images for 1 % | s for 1 % | of the published |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for protocol in ("in-situ", "shared-input"):
        found = child("--precise", protocol)
        more = max(1.0, (found["reached"] / PRECISION) ** 2)
        seconds = found["fixed"] + more * (found["seconds"] - found["fixed"])
        print(f"| {protocol} | {found['images']} | {found['reached']:.2%} | {found['seconds']:.1f} | "
              f"{found['images'] * more:,.0f} | {seconds:.1f} | {seconds / whole:.4f} |")  # fmt: skip


if __name__ == "__main__":
    main()
