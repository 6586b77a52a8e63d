"""What a training step costs: time, memory, and the floor, ours against PEFT's LoRA and plainly coded adapters.

    python benchmarks/steps.py --weights vit_small_patch14_dinov2.safetensors
    python benchmarks/steps.py --weights FILE --only "LoRA (PEFT)" "adapters (pliant)"
    python benchmarks/steps.py --runs DEFAULTS_FOLDER       # adds the time to LoRA's accuracy (benchmarks/defaults.py)

One model (ViT-S/14, 112 px), one batch of 32 random images, 2 threads. Each case runs in a process of its own, in
rounds (A B C ... A B C ...), so that drift of the machine hits all alike; the median step is told. Memory is the
peak above the loaded model. The floor is the matrix products' FLOPs at the rate measured for this machine.
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

MODEL, SIZE, BATCH, CLASSES, THREADS = "vit_small_patch14_dinov2", 112, 32, 10, 2


# --- the cases: each returns one step as a function ------------------------------------------------------------------


def plain(method: str, **options) -> Callable:
    """A training step as one codes it by hand: the whole model, the whole batch, torch's own autograd."""

    def build(model, images, labels):
        import torch
        import torch.nn.functional as F

        from pliant.methods import plan

        made = plan(model, method, **options)
        made.apply(model)
        optimizer = torch.optim.AdamW(made.parameters(model), lr=1e-3)

        def step():
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
            optimizer.step()

        return step

    return build


def paper_adapters(model, images, labels) -> Callable:
    """Adapters as in the paper's code: a wrapper module around each block of a frozen model."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Wrapped(nn.Module):
        def __init__(self, block, width=384, rank=16):
            super().__init__()
            self.block, self.down, self.up = block, nn.Linear(width, rank), nn.Linear(rank, width)
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

        def forward(self, x):
            h = self.block(x)
            return h + 1.0 * self.up(F.gelu(self.down(h)))

    model.requires_grad_(False)
    model.blocks = nn.Sequential(*(Wrapped(block) for block in model.blocks))
    model.head.requires_grad_(True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    return step


def ours(method: str, cache: bool, **options) -> Callable:
    """A step of `pliant adapt`: its own trainer, with what is frozen computed once (`cache`) or at every step."""

    def build(model, images, labels):
        import numpy as np
        import torch
        from accelerate import Accelerator

        from pliant import anatomy
        from pliant.adapt import settings
        from pliant.adapt.defaults import micro_batch, resolve
        from pliant.adapt.training import Trainer
        from pliant.memory import keep_freed_memory
        from pliant.methods import plan

        keep_freed_memory()
        accelerator = Accelerator(cpu=True)
        made = plan(model, method, **options)
        made.apply(model)
        stages = anatomy.stages(model)[: len(made.prefix)]

        class Source:
            def __init__(self):
                self.labels = labels.numpy()
                with torch.no_grad():
                    self.kept = self.prefix(images).half() if cache else None

            def prefix(self, x):
                return anatomy.through(stages, x)

            def batch(self, indices, epoch):
                if self.kept is not None:
                    return self.kept[indices].float()
                with torch.no_grad():
                    return torch.cat([self.prefix(part) for part in images[indices].split(micro)])

        chosen = resolve(settings(data="", method=method, epochs=1000), model, accelerator.device, len(made.prefix))
        micro = micro_batch(model, accelerator.device, BATCH, 0)
        source = Source()
        trainer = Trainer(chosen, accelerator, model, made, source, source, CLASSES)
        order = np.arange(BATCH)

        def step():
            trainer._update(source.batch(order, 0), order, 1.0)
            trainer.position.step += 1

        return step

    return build


CASES: dict[str, Callable] = {
    "head only, uncached": ours("head", cache=False),
    "head only, cached": ours("head", cache=True),
    "LayerNorms only (plain)": plain("ln1,ln2"),
    "full (plain)": plain("full"),
    "LoRA r=16 on qkv (PEFT, plain)": plain("lora", rank=16),
    "LoRA r=16 on qkv (PEFT, pliant)": ours("lora", cache=True, rank=16),
    "adapters r=16 (plain, as the paper)": paper_adapters,
    "adapters r=16 (pliant)": ours("adapter", cache=True, rank=16),
    "adapters r=16 (pliant, fresh images)": ours("adapter", cache=False, rank=16),
    "LayerNorms only (pliant)": ours("ln1,ln2", cache=True),
    "mha (pliant)": ours("mha", cache=True),
    "fc1 (pliant)": ours("fc1", cache=True),
    "adapters r=16, last 3 (uncached)": ours("adapter", cache=False, rank=16, blocks="last:3"),
    "adapters r=16, last 3 (cached)": ours("adapter", cache=True, rank=16, blocks="last:3"),
}
REFERENCE = "LoRA r=16 on qkv (PEFT, plain)"


# --- the floor -------------------------------------------------------------------------------------------------------


def floors(tokens=65, width=384, depth=12) -> dict[str, float]:
    """GFLOPs of the matrix products of a step of 32 images: forward, and backward as far as each method needs it."""
    block = 2 * tokens * 12 * width**2 + 4 * tokens**2 * width  # projections and MLP, attention
    forward, inward = depth * block, depth * block  # `inward`: gradients of inputs, as costly as the forward pass
    embed = 2 * (tokens - 1) * 3 * 14**2 * width
    qkv = 2 * tokens * 3 * width**2  # the first block's: nothing trained lies before it
    weights = depth * 2 * tokens * 12 * width**2
    adapter = 2 * tokens * 2 * width * 16
    lora = 2 * tokens * 16 * (width + 3 * width)
    steps = {
        "head only, uncached": embed + forward,
        "head only, cached": 6 * width * CLASSES,
        "LayerNorms only (plain)": embed + forward + inward,
        "full (plain)": embed + forward + inward + weights,
        "LoRA r=16 on qkv (PEFT, plain)": embed + forward + inward - qkv + 3 * depth * lora,
        "LoRA r=16 on qkv (PEFT, pliant)": forward + inward - qkv + 3 * depth * lora,
        "adapters r=16 (plain, as the paper)": embed + forward + inward - block + 3 * depth * adapter,
        "adapters r=16 (pliant)": forward + inward - 2 * block + 3 * depth * adapter,
        "adapters r=16 (pliant, fresh images)": embed + forward + inward - block + 3 * depth * adapter,
        "LayerNorms only (pliant)": forward + inward,
        "mha (pliant)": forward + inward - qkv + weights / 3,
        "fc1 (pliant)": forward + inward - block + weights / 3,
        "adapters r=16, last 3 (uncached)": embed + forward + 2 * block + 9 * adapter,
        "adapters r=16, last 3 (cached)": 4 * block + 9 * adapter,
    }
    return {name: BATCH * flops / 1e9 for name, flops in steps.items()}


def matmul_rate() -> float:
    """GFLOP/s of this machine on the model's largest product, rows as in a micro-batch."""
    import torch

    torch.set_num_threads(THREADS)
    a, b = torch.randn(520, 384), torch.randn(1536, 384)
    seconds = []
    for _ in range(60):
        started = time.perf_counter()
        torch.nn.functional.linear(a, b)
        seconds.append(time.perf_counter() - started)
    return 2 * 520 * 384 * 1536 / statistics.median(seconds) / 1e9


# --- running ---------------------------------------------------------------------------------------------------------


def measure(name: str, weights: Path, steps: int) -> dict:
    """One case, in this process."""
    import torch

    import pliant

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = pliant.load(MODEL, weights=weights, num_classes=CLASSES, img_size=SIZE)
    pliant.replace_head(model, CLASSES)
    images, labels = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, CLASSES, (BATCH,))
    loaded = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
    step = CASES[name](model, images, labels)
    repeat = 200 if name == "head only, cached" else 1
    seconds = []
    for _ in range(steps + 2):
        started = time.perf_counter()
        for _ in range(repeat):
            step()
        seconds.append((time.perf_counter() - started) / repeat)
    return {"seconds": seconds[2:], "memory_mb": (_status("VmHWM") - loaded) / 1024}


def _status(field: str) -> int:
    """Kilobytes of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="cases whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps a case and round")
    parser.add_argument("--runs", type=Path, help="folder of benchmarks/defaults.py, for the time to LoRA's accuracy")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options.weights, options.steps)))
        return
    names = [name for name in CASES if not options.only or any(part in name for part in options.only)]
    results: dict[str, dict] = {name: {"seconds": [], "memory_mb": []} for name in names}
    for number in range(options.rounds):
        for name in names:
            print(f"round {number + 1}/{options.rounds}: {name}", file=sys.stderr, flush=True)
            command = [
                sys.executable,
                __file__,
                "--weights",
                str(options.weights),
                "--case",
                name,
                "--steps",
                str(options.steps),
            ]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            results[name]["seconds"] += found["seconds"]
            results[name]["memory_mb"].append(found["memory_mb"])
    report(results, options.runs)
    if options.json:
        options.json.write_text(json.dumps(results))


def report(results: dict[str, dict], runs: Path | None) -> None:
    rate, floor = matmul_rate(), floors()
    medians = {name: statistics.median(found["seconds"]) for name, found in results.items()}
    memory = {name: statistics.median(found["memory_mb"]) for name, found in results.items()}
    base = medians.get(REFERENCE)
    print(f"\n{MODEL}, {SIZE} px, batch {BATCH}, {THREADS} threads; matrix products run at {rate:.0f} GFLOP/s\n")
    print("| case | s/step | min | of LoRA's time | peak MB above the model | of LoRA's | floor s | times the floor |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, seconds in medians.items():
        least = floor[name] / rate
        share = f"{seconds / base:.2f}" if base else "-"
        peak = f"{memory[name] / memory[REFERENCE]:.2f}" if base else "-"
        print(f"| {name} | {seconds:.4f} | {min(results[name]['seconds']):.4f} | {share} | {memory[name]:.0f} | {peak} | "
              f"{least:.4f} | {seconds / least:.1f} |")  # fmt: skip
    for first, second in (
        ("head only, uncached", "head only, cached"),
        ("adapters r=16 (pliant)", "adapters r=16, last 3 (cached)"),
    ):
        if first in medians and second in medians:
            print(f"\n{second}: {medians[first] / medians[second]:.1f} times faster than {first}")
    if runs and base:
        reach(runs, medians)


def reach(runs: Path, medians: dict[str, float]) -> None:
    """Seconds to the validation accuracy at which LoRA ends: steps to it in the stored runs, at the measured rates."""
    from pliant.adapt.job import LOG

    def epochs(folder: Path) -> list[dict]:
        rows = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
        return [row for row in rows if row["kind"] == "epoch"]

    cost = {"lora": REFERENCE, "adapter": "adapters r=16 (pliant)", "head": "head only, cached", "full": "full (plain)",
            "ln1,ln2": "LayerNorms only (pliant)", "mha": "mha (pliant)", "fc1": "fc1 (pliant)",
            "adapter-last3": "adapters r=16, last 3 (cached)"}  # fmt: skip
    print("\n| method | seed | validation top-1 at LoRA's end | steps to it | seconds to it | of LoRA's |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for lora in sorted(runs.glob("lora-*")):
        seed = lora.name.rpartition("-")[2]
        goal, last = epochs(lora)[-1]["val_top1"], epochs(lora)[-1]["step"]
        whole = last * medians[cost["lora"]]
        for method, case in cost.items():
            folder = runs / f"{method}-{seed}"
            if not folder.is_dir() or case not in medians:
                continue
            at = next((row["step"] for row in epochs(folder) if row["val_top1"] >= goal), None)
            told = (
                f"{at} | {at * medians[case]:.1f} | {at * medians[case] / whole:.2f}" if at else "not reached | - | -"
            )
            print(f"| {method} | {seed} | {goal:.3f} | {told} |")


if __name__ == "__main__":
    main()
