"""The page docs/plasticity-results.md: what is plastic in two real backbones, and whether the paper's claims hold there.

    python recipes/plasticity/results.py --weights vit_small_patch14_dinov2.safetensors --imagenet DATA/imagenet_sample \\
        --cifar10 DATA/cifar10 --more DATA/sign_digits DATA/omniglot_small1 --out runs/plasticity-results

Measures, keeps every measurement in OUT (what is there already is read, not measured again), and writes the page.
"""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path

from pliant import measure
from pliant.measure import run, words
from pliant.measure.result import Plasticity
from pliant.progress import say

PAGE = Path(__file__).parents[2] / "docs" / "plasticity-results.md"
CLAIMED = "MHA > FC1 ~ FC2 > LN2 > LN1"
CLAIMS = ("plasticity-ranking", "plasticity-threshold", "bounds-order")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True, help="of vit_small_patch14_dinov2")
    parser.add_argument("--imagenet", required=True)
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--more", nargs="*", default=[], help="further downstream data")
    parser.add_argument("--out", type=Path, default=Path("runs/plasticity-results"))
    options = parser.parse_args()
    vit = {"model": "vit_small_patch14_dinov2", "weights": options.weights, "img_size": 112}
    found = []
    for title, model, pretrain, downstream in (
        ("ViT-S/14 (DINOv2, finetuned for saliency), 112 px", vit, options.imagenet, [options.cifar10, *options.more]),
        ("pico, 32 px", {"model": "pico"}, options.cifar10, ["digits", *options.more]),
    ):
        for data in downstream:
            for protocol in measure.PROTOCOLS:
                chosen = run.Settings(**model, pretrain=pretrain, downstream=data, protocol=protocol)
                place = options.out / f"{model['model']}-{Path(data).name}-{protocol}"
                found.append((title, Path(pretrain).name, Path(data).name, protocol, measured(chosen, place)))
    PAGE.write_text(page(found))
    say(f"page: {PAGE}")


def measured(chosen: run.Settings, place: Path) -> Plasticity:
    if not (place / "summary.json").exists():
        say(f"measuring {place.name}")
        run.save(run.measure(chosen, "python recipes/plasticity/results.py"), place)
    return measure.load(place)


def page(found: list[tuple[str, str, str, str, Plasticity]]) -> str:
    lines = [
        "# What is plastic: results", "",
        f"Written on {date.today()} by the command in `recipes/plasticity/results.py`; nothing here is typed by hand. What the figures",
        "mean: [plasticity.md](plasticity.md). All intervals are of 95 %. x is drawn from the images before the arrow, y",
        "from those behind it.", "",
        f"The paper (arXiv 2602.06883) ranks {CLAIMED}, says that MHA and FC amplify (P > 1) and that LayerNorms contract",
        "(P < 1), and ranks the upper bounds in the same order.", "",
        "In the table, > stands where the interval of the difference of two means excludes 0, ~ where it does not; the last three",
        "columns say what the package's checks of the three claims find: the order, the sides of 1, the bounds and their order.", "",
        "| model | images | protocol | found | order | sides of 1 | bounds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for title, first, second, protocol, each in found:
        outcomes = " | ".join(verdicts(each))
        lines.append(
            f"| {title.split()[0].rstrip(',')} | {first} → {second} | {protocol} | {words.chain(each, protocol)} | {outcomes} |"
        )
    for title, first, second, protocol, each in found:
        lines += ["", f"## {title}: {first} → {second}, {protocol}", ""]
        summary = each.summary
        reached = f"half-widths of {summary['reached']:.2%} or less"
        lines.append(
            f"{summary['images']} images a side, {summary['pairs']:,} pairs, {reached}, {summary['seconds']:.0f} s."
        )
        lines += [f"*{note}.*" for note in summary["notes"]]
        lines += ["", table(each, protocol), ""]
        sublayers = each.sublayers(protocol)
        if len(sublayers):
            rates = (
                f"{r['component']} {r['mean']:.3f} ({r['low']:.3f} to {r['high']:.3f})"
                for r in sublayers.to_dict("records")
            )
            lines.append(f"Whole sub-layers: {', '.join(rates)}.")
        lines += words.sentences(each, protocol)
    return "\n".join(lines) + "\n"


def table(each: Plasticity, protocol: str) -> str:
    rows = ["| component | plasticity | interval | deviation | largest | local | bound | bound / largest | elasticity (ours) |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for row in each.table(protocol).sort_values("mean", ascending=False).to_dict("records"):
        local = "-" if row["local"] != row["local"] else f"{row['local']:.4g}"
        rows.append(f"| {row['component']} | {row['mean']:.4g} | {row['low']:.4g} to {row['high']:.4g} | {row['std']:.2g} | "
                    f"{row['largest']:.4g} | {local} | {row['bound']:,.4g} | {row['bound'] / row['largest']:,.3g} | "
                    f"{row['elasticity']:.3f} |")  # fmt: skip
    return "\n".join(rows)


def verdicts(each: Plasticity) -> list[str]:
    """What the package's own checks of the paper's claims say."""
    from pliant.study.claims import judge, read_claims

    claims = {claim.id: claim for claim in read_claims()}
    return [judge(claims[name], None, {"plasticity": each.rows}).outcome for name in CLAIMS]


if __name__ == "__main__":
    main()
