"""The run's page: what it says, and that it says it alone, safely and the same each time."""

import json
import math
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from PIL import Image

from pliant import report
from pliant.errors import PliantError
from pliant.report import words
from tests.report.fake import CIFAR, fake_run, read_summary, thumbnails, write_summary


def page(run, images=None) -> str:
    return report.write(run, images).read_text(encoding="utf-8")


def text_of(html: str) -> str:
    """What a reader sees: no tags, one blank between words."""

    class Text(HTMLParser):
        def __init__(self):
            super().__init__()
            self.parts, self.open = [], []

        def handle_starttag(self, tag, attrs):
            self.open.append(tag)

        def handle_data(self, data):
            if "style" not in self.open[-1:]:
                self.parts.append(data)

    reader = Text()
    reader.feed(html)
    return " ".join(" ".join(reader.parts).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fake_run(tmp_path_factory.mktemp("runs") / "a")


def test_numbers_are_the_summarys(run):
    summary, text = read_summary(run), text_of(page(run))
    test = summary["test"]
    assert f"{100 * test['top1']:.1f} % test top-1 accuracy" in text
    assert "1,000 test images of 10 classes. Trained on 900 images" in text
    assert f"calibration error on the test images: {100 * test['ece']:.2f} %" in text
    assert "Trained parameters 156,298 (0.71 %)" in text
    assert "Learned file 634.1 kB" in text and "Training time 4 min 26 s" in text
    assert f"{100 * summary['gap']:+.1f} points" in text
    for part in ("weights 88 MB", "optimizer 1 MB", "activations 413 MB", "peak 731 MB"):
        assert f"Memory: {part}" in text
    for row in summary["plan"]:
        assert f"{row['part']} {row['blocks']}".strip() in text and f"{row['parameters']:,}" in text
    assert summary["command"] in text
    assert "weight_decay 0.05" in text and "views not set" in text and "betas [0.9, 0.999]" in text
    assert "torch 2.9.1" in text
    for name, row in zip(CIFAR, test["confusion"], strict=True):
        assert f"{name} {' '.join(map(str, row))}" in text
    for name, share in zip(CIFAR, test["per_class"], strict=True):
        assert f"{name} {100 * share:.1f} % 100" in text


def test_asks_for_nothing_outside(run):
    html = page(run, thumbnails(report.hardest(run)))
    assert not re.search(r"(src|href|action|data|poster)\s*=\s*[\"']?\s*(https?:|//|file:)", html)
    assert "<script" not in html and "<link" not in html and "@import" not in html and "url(" not in html
    assert "default-src 'none'" in html
    assert set(re.findall(r'src="([^,]*),', html)) == {"data:image/png;base64"}


def test_same_run_same_bytes(run):
    images = thumbnails(report.hardest(run), side=300)
    first = report.write(run, images).read_bytes()
    assert report.write(run, images).read_bytes() == first
    picture = report.picture(run).read_bytes()
    assert report.picture(run).read_bytes() == picture
    assert not [file for file in run.iterdir() if file.name.endswith(".tmp")]


def test_hostile_names_are_escaped(tmp_path):
    names = ('<script>alert("x")</script>', "'\"><img src=http://example.org/a.png>", "$\\frac{", "{{ 7 * 7 }}")
    run = fake_run(tmp_path / "a", classes=names, images=80, skill=1.0)
    summary = read_summary(run)
    summary["data"]["spec"] = summary["command"] = "</pre><script>alert(1)</script>"
    summary["data"]["skipped"] = ["</ul><b onclick=alert(1)>"]
    write_summary(run, summary)
    html = page(run)
    assert "<script" not in html and "<img" not in html and "<b onclick" not in html and "</pre><" not in html.lower()
    assert "&lt;script&gt;" in html and "{{ 7 * 7 }}" in html
    report.picture(run)


def test_undecodable_file_name(tmp_path):
    run = fake_run(tmp_path / "a", images=40)
    summary = read_summary(run)
    summary["data"]["skipped"] = ["train/\udcff.jpg"]
    write_summary(run, summary)
    assert "train/?.jpg" in page(run)


def test_hardest_are_the_most_confident_mistakes(run):
    table = pd.read_parquet(run / "predictions.parquet")
    wrong = table[table.label != table.prediction].set_index("key")
    keys = report.hardest(run)
    assert len(keys) == 24 and list(wrong.loc[keys].confidence) == sorted(wrong.confidence, reverse=True)[:24]
    assert report.hardest(run, count=3) == keys[:3]
    text = text_of(page(run))
    label, prediction, confidence = (wrong.at[keys[0], name] for name in ("label", "prediction", "confidence"))
    assert f"{CIFAR[label]} → {CIFAR[prediction]} {100 * confidence:.1f} % sure" in text
    assert "images are not available" in text


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "1", "CMYK", "I;16"])
@pytest.mark.parametrize("side", [8, 500])
def test_thumbnails_of_every_mode(tmp_path, mode, side):
    run = fake_run(tmp_path / "a", images=40, skill=0.5)
    key = report.hardest(run)[0]
    html = page(run, {key: Image.new(mode, (side, side // 2))})
    assert html.count("<img ") == 1 and ('class="tiny"' in html) == (side == 8)
    assert html.count("image not available") == len(report.hardest(run)) - 1


def test_page_with_24_photographs_is_small(run):
    images = thumbnails(report.hardest(run), side=2000)
    assert report.write(run, images).stat().st_size < 3e6
    assert all(image.size == (2000, 2000) for image in images.values())  # the caller's images are left alone


def test_two_classes(tmp_path):
    run = fake_run(tmp_path / "a", classes=("no", "yes"), images=60)
    text = text_of(page(run))
    assert "top-2 accuracy" in text and "of 2 classes" in text
    report.picture(run)


def test_a_thousand_classes(tmp_path):
    run = fake_run(tmp_path / "a", classes=[f"class {number}" for number in range(1000)], images=3000, skill=4)
    html = page(run)
    text = text_of(html)
    assert 'class="confusion' not in html and "20 most confused pairs" in text
    assert "The other 970 classes" in text and len(html) < 3e6
    report.picture(run)


def test_everything_right(tmp_path):
    run = fake_run(tmp_path / "a", images=50, skill=50)
    assert report.hardest(run) == []
    text = text_of(page(run, {}))
    assert "Every test image was classified correctly" in text and "to 100.0 % (Wilson)" in text


def test_missing_pieces(tmp_path):
    run = fake_run(tmp_path / "a", images=50)
    for name in ("metrics.jsonl", "run.yaml", "predictions.parquet"):
        (run / name).unlink()
    text = text_of(page(run))
    assert text.count("Nothing was recorded") == 4 and "run.yaml is not there" in text and "no predictions" in text
    report.picture(run)
    with pytest.raises(PliantError, match="no predictions.parquet"):
        report.hardest(run)


def test_no_test_images(tmp_path):
    run = fake_run(tmp_path / "a", classes=("a", "b"), images=0)
    text = text_of(page(run))
    assert "n/a test top-1 accuracy" in text and "a n/a 0" in text
    report.picture(run)


def test_not_a_number(tmp_path):
    run = fake_run(tmp_path / "a", images=50)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row.update({name: math.nan for name in ("loss", "val_loss") if name in row and number % 3})
        row.update(grad_norm=math.inf, lr=None)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = read_summary(run)
    summary["test"].update(loss=math.nan, ece=math.nan)
    summary["training"].update(lr="auto", best_epoch=None, memory_mb=None, cache=None, seconds=None)
    write_summary(run, summary)
    table = pd.read_parquet(run / "predictions.parquet")
    table.loc[::2, "confidence"] = math.nan
    table.to_parquet(run / "predictions.parquet")
    html = page(run)
    assert not re.search(r"\b(nan|inf)\b", html, re.IGNORECASE)
    assert text_of(html).count("Nothing was recorded") == 2
    report.picture(run)


def test_class_without_test_images(tmp_path):
    run = fake_run(tmp_path / "a", images=9)
    assert "truck n/a 0" in text_of(page(run))
    report.picture(run)


def test_not_a_run(tmp_path):
    with pytest.raises(PliantError, match=r"nowhere: holds no finished run, .*output folder"):
        report.write(tmp_path / "nowhere")
    run = fake_run(tmp_path / "a", images=20)
    (run / "summary.json").unlink()
    with pytest.raises(PliantError, match="--resume"):
        report.picture(run)
    for content, told in (("[]", "not the summary of a run"), ('{"test": {}}', "it has no command"), ("{", "JSON")):
        (run / "summary.json").write_text(content)
        with pytest.raises(PliantError, match=told):
            report.write(run)


def test_damaged_files(tmp_path):
    run = fake_run(tmp_path / "a", images=20)
    for name, told in (("metrics.jsonl", "line 1 is not JSON"), ("run.yaml", "YAML"), ("predictions.parquet", "table")):
        whole = (run / name).read_bytes()
        (run / name).write_text("{ [")
        with pytest.raises(PliantError, match=told):
            report.write(run)
        (run / name).write_bytes(whole)
    assert not (run / "report.html").exists()


def test_picture_is_a_readable_size(run):
    with Image.open(report.picture(run)) as image:
        assert image.format == "PNG" and image.width >= 1200 and image.width > image.height


def test_words():
    assert [words.duration(seconds) for seconds in (59.94, 61, 3725)] == ["59.9 s", "1 min 01 s", "1 h 02 min"]
    assert words.size(999) == "999 B" and words.size(1_300_000) == "1.3 MB" and words.size(None) == "n/a"
    assert words.percent(float("nan")) == "n/a"
