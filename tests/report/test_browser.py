"""The page in a real browser: nothing is wider than the window, on a phone or on a desk."""

import re
import shutil
import subprocess

import pytest

from pliant import report
from tests.report.fake import fake_run, read_summary, thumbnails, write_summary
from tests.report.measured import fake_measurement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless=new", "--hide-scrollbars", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-sync", "--disable-background-networking", "--disable-component-update", "--virtual-time-budget=3000",
]  # fmt: skip
WIDTHS = (400, 1400)

_MEASURE = """<script>addEventListener("load", () => {
  const root = document.documentElement;
  const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll") &&
    e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + "." + e.getAttribute("class"));
  parent.postMessage(`${innerWidth} ${root.scrollWidth} ${wide.slice(0, 5)}`, "*");
});</script>"""


def measure(run, profile) -> dict[int, tuple[int, str]]:
    """By width of the window: width of the content, and what sticks out of it. Each is read in an iframe."""
    # The page forbids scripts, so a copy of it is measured that does not.
    html = re.sub(r"<meta http-equiv[^>]*>", "", (run / "report.html").read_text(encoding="utf-8"))
    (run / "measured.html").write_text(html.replace("</body>", f"{_MEASURE}</body>"), encoding="utf-8")
    frames = "".join(f'<iframe src="measured.html" style="width:{w}px;height:900px;border:0"></iframe>' for w in WIDTHS)
    listen = "onmessage = e => document.body.append(`[${e.data}]`)"
    (run / "frames.html").write_text(f"<body><script>{listen}</script>{frames}")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--window-size=1600,2000", "--dump-dom"]
    done = subprocess.run([*command, (run / "frames.html").as_uri()], capture_output=True, text=True, timeout=120)
    told = re.findall(r"\[(\d+) (\d+) ([^\]]*)\]", done.stdout)
    return {int(window): (int(content), wide) for window, content, wide in told}


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("classes", [30, 300])
def test_nothing_overflows(tmp_path, classes):
    names = ["a-class-name-without-any-blank-that-is-longer-than-a-phone-is-wide", *map(str, range(classes - 1))]
    run = fake_run(tmp_path / "run", classes=names, images=3 * classes)
    summary = read_summary(run)
    summary["command"] += " --weights " + "a" * 300
    summary["data"]["spec"] = "data/" + "b" * 200
    write_summary(run, summary)
    report.write(run, thumbnails(report.hardest(run)))
    assert measure(run, tmp_path / "profile") == {width: (width, "") for width in WIDTHS}


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("kind", ["measurement", "comparison"])
def test_nothing_overflows_of_plasticity(tmp_path, kind):
    name = "a-name-without-any-blank-that-is-longer-than-a-phone-is-wide" * 3
    named = dict.fromkeys(("model", "weights", "pretrain", "downstream", "command"), name)
    measured = fake_measurement(("in-situ", "shared-input"), depth=32, notes=[name], **named)
    if kind == "measurement":
        measured.save(tmp_path)
        report.write_plasticity(tmp_path, base=measured, rates=measured.rates)
    else:
        report.write_comparison(measured, measured, (name, name), tmp_path)
    assert measure(tmp_path, tmp_path / "profile") == {width: (width, "") for width in WIDTHS}
