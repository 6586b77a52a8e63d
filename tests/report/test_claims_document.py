"""`claims.md` tells the verdicts that the page tells, of one paper's claims."""

from __future__ import annotations

import pandas as pd

from pliant.report import write_study
from pliant.report.claims_document import Document, claims_document
from pliant.study.claims import Claim, Verdict


def verdict(claim_id, source, outcome, ours, says="it | holds", paper="1.00"):
    return Verdict(Claim(id=claim_id, source=source, says=says), outcome, paper, ours, "a test", f"About {claim_id}.")


def test_one_row_a_claim_of_the_paper():
    verdicts = [
        verdict("a", "nonsmooth", "holds", "1.01"),
        verdict("b", "nonsmooth", "not tested", ""),
        verdict("c", "adaptertune", "holds", "2.02"),
    ]
    document = Document("nonsmooth", "A small study.", "2026-01-02", ["no crops"])
    text = claims_document(verdicts, document, "nonsmooth, laptop", "pliant reproduce", "12 runs", ["left out"])
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows == [
        r"| it \| holds | 1.00 | 1.01 | a test | **holds** |",
        r"| it \| holds | 1.00 | - | a test | **not tested** |",
    ]
    for said in ("# nonsmooth, laptop", "A small study.", "2026-01-02", "```\npliant reproduce\n```", "12 runs. Of 2 claims 1 hold",
                 "- left out", "- no crops", "- **a** (holds): About a."):  # fmt: skip
        assert said in text


def test_the_verdicts_are_those_of_the_page(tmp_path, monkeypatch):
    from pliant.study import claims

    calls = []
    found = [verdict("a", "nonsmooth", "does not hold", "the figure 4.25")]
    monkeypatch.setattr(claims, "judge_all", lambda *given: calls.append(given) or found)
    runs = [
        {"data": "d", "model": "m", "method": method, "seed": seed, "val_top1": 0.5, "test_top1": 0.5, "run": f"{method}{seed}"}
        for method in ("mha", "ln1") for seed in (0, 1)
    ]  # fmt: skip
    steps = {"mha0": pd.DataFrame({"step": [1, 2], "loss": [2.0, 1.0], "grad_norm": [1.0, 3.0]})}
    write_study(tmp_path, pd.DataFrame(runs), steps=steps, document=Document("nonsmooth", "S.", "2026-01-02"))
    assert len(calls) == 1
    assert calls[0][1]["steps"][["run", "step", "grad_norm"]].values.tolist() == [["mha0", 1, 1.0], ["mha0", 2, 3.0]]
    for name in ("report.html", "claims.md", "claims.csv"):
        assert "the figure 4.25" in (tmp_path / name).read_text()
    assert "4 runs, 0 of them failed" in (tmp_path / "claims.md").read_text()
