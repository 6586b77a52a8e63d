"""What a study saves by computing once what its runs share: heads, and adapters in the last blocks, on a real ViT-S.

    python benchmarks/study.py --data DATA/cifar10 --weights vit_small_patch14_dinov2.safetensors --out runs/study-speed

Two grids: 60 head-only runs (4 rates, 5 decays, 3 seeds) and 24 runs of adapters in the last two blocks (2 ranks, 4
rates, 3 seeds). Each is made as a study with one worker, and as the same runs by `pliant adapt` one by one, which keep
frozen outputs within a run but share nothing. `--alone K` makes K of them alone, evenly spread, and counts their mean for
the rest. Prints times, their ratio, and by how much the accuracies differ.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

GRIDS = {
    "head": {"lr": [1e-3, 3e-3, 1e-2, 3e-2], "weight_decay": [0.0, 1e-4, 1e-3, 1e-2, 1e-1], "seed": [0, 1, 2]},
    "adapter": {"rank": [8, 16], "lr": [3e-4, 1e-3, 3e-3, 1e-2], "seed": [0, 1, 2]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--grids", nargs="*", default=list(GRIDS))
    parser.add_argument("--img-size", type=int, default=56)
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument(
        "--test", type=int, help="test images, other ones for each seed (default: all, the same for each)"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--alone", type=int, help="runs to make one by one (default: all)")
    options = parser.parse_args()
    print(
        "| grid | runs | alone, s a run | as a study, s | alone, s in all | times faster | largest difference of test top-1 |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.grids:
        print("| " + " | ".join(compared(name, options)) + " |", flush=True)


def compared(name: str, options: argparse.Namespace) -> list[str]:
    from pliant import adapt
    from pliant.study.execute import execute
    from pliant.study.file import parse
    from pliant.study.folder import StudyFolder
    from pliant.study.ready import check

    fixed = {
        "data": options.data, "model": "vit_small_patch14_dinov2", "weights": options.weights, "method": name,
        "img_size": options.img_size, "limit_train": options.train, "limit_test": options.test, "epochs": options.epochs,
        **({"blocks": "last:2"} if name == "adapter" else {}),
    }  # fmt: skip
    folder = StudyFolder(options.out / name)
    began = time.perf_counter()
    runs = folder.store(parse({"axes": GRIDS[name], "fixed": fixed}, name))
    check(runs)
    execute(folder, runs)
    shared = time.perf_counter() - began

    alone = options.out / f"{name}-alone"
    chosen = [runs[i] for i in np.linspace(0, len(runs) - 1, options.alone or len(runs)).round().astype(int)]
    began = time.perf_counter()
    for run in chosen:
        adapt.run(run.settings.model_copy(update={"out": str(alone / run.name)}))
    each = (time.perf_counter() - began) / len(chosen)
    apart = [abs(top1(folder.run(run)) - top1(alone / run.name)) for run in chosen]
    total = each * len(runs)
    made = f"{len(runs)}" if len(chosen) == len(runs) else f"{len(runs)} ({len(chosen)} made alone)"
    return [name, made, f"{each:.1f}", f"{shared:.1f}", f"{total:.0f}", f"{total / shared:.1f}", f"{max(apart):.4f}"]


def top1(folder: Path) -> float:
    return json.loads((folder / "summary.json").read_text())["test"]["top1"]


if __name__ == "__main__":
    main()
