"""How good the defaults are: every method on CIFAR-10 with a real ViT-S, 1,000 training and 1,000 test images.

    python benchmarks/defaults.py --data DATA/cifar10 --weights vit_small_patch14_dinov2.safetensors --out runs/defaults

Runs `pliant adapt` for each method and seed with its default rate and schedule, 5 epochs; runs already done are not
done again, stopped ones go on. Prints mean and deviation of the test accuracy over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

METHODS = ("head", "ln1,ln2", "ln1", "ln2", "mha", "fc1", "fc2", "adapter", "lora", "full")
BEFORE = {"head": 54.7, "ln1,ln2": 60.9, "adapter": 71.5, "lora": 74.1, "fc1": 76.7, "mha": 77.4}
"""One plain run each, one seed, before these defaults were chosen."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--seeds", nargs="*", type=int, default=(0, 1, 2))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="only print the table of what is done")
    options = parser.parse_args()
    if not options.table:
        for seed in options.seeds:
            for method in options.methods:
                one(method, seed, options)
    table(options.out)


def one(name: str, seed: int, options: argparse.Namespace) -> None:
    from pliant import adapt

    folder = options.out / f"{name}-{seed}"
    if (folder / "run.yaml").exists():
        adapt.resume(folder)
        return
    method, _, last = name.partition("-last")
    chosen = adapt.settings(
        data=options.data, model="vit_small_patch14_dinov2", weights=options.weights, img_size=112, limit_train=1000,
        limit_test=1000, epochs=options.epochs, seed=seed, method=method, out=str(folder),
        blocks=f"last:{last}" if last else "all",
    )  # fmt: skip
    adapt.run(chosen, f"python benchmarks/defaults.py --methods {name} --seeds {seed}")


def table(out: Path) -> None:
    found: dict[str, list[dict]] = {}
    for file in sorted(out.glob("*/summary.json")):
        found.setdefault(file.parent.name.rpartition("-")[0], []).append(json.loads(file.read_text()))
    print(
        "| method | trained parameters | seeds | test top-1 % | deviation | validation % | train - test | plain, before |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, runs in sorted(found.items(), key=lambda item: statistics.mean(r["test"]["top1"] for r in item[1])):
        top1 = [100 * run["test"]["top1"] for run in runs]
        spread = f"{statistics.stdev(top1):.1f}" if len(top1) > 1 else "-"
        trained = sum(row["parameters"] for row in runs[0]["plan"] if row["trained"])
        val, gap = (statistics.mean(100 * value for value in values)
                    for values in ([r["val"]["top1"] for r in runs], [r["gap"] for r in runs]))  # fmt: skip
        print(f"| {name} | {trained:,} | {len(runs)} | {statistics.mean(top1):.1f} | {spread} | {val:.1f} | {gap:.1f} | "
              f"{BEFORE.get(name, '-')} |")  # fmt: skip


if __name__ == "__main__":
    main()
