"""The claims of the papers, and what a study's results say of each; the checks themselves are in `checks`.

"holds": the check passed. "does not hold": it was run and did not pass; the sentence tells whether the difference points
the other way or may be chance. "not tested": runs or measurements are missing, or too few for the test to come out at all.

Accuracies are those of settings chosen on validation data, of the largest training set, and of adapters at the paper's
own rank, alpha and placement where these were run, so that an axis swept for one method alone gives it no advantage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from pliant.errors import PliantError
from pliant.study.selection import Results

Outcome = Literal["holds", "does not hold", "not tested"]


class Claim(BaseModel):
    """What a paper says; `figure` holds its numbers, `holds_when` the check in words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    source: str
    says: str
    holds_when: str | None = None
    figure: dict[str, float | str] | None = None


class _ClaimsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sources: dict[str, str]
    claims: list[Claim]


def read_claims(path: Path | None = None) -> list[Claim]:
    """The claims of `claims.yaml` in its order; the package's own unless a path is given.

    Raises:
        PliantError: the file is missing or no YAML, has an unknown or no needed key, an id twice or an unknown source.
    """
    path = path or Path(__file__).with_name("claims.yaml")
    try:
        found = _ClaimsFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise PliantError(f"{path}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PliantError(f"{path}: not readable as YAML ({str(error).splitlines()[0]})") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise PliantError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    seen: set[str] = set()
    for claim in found.claims:
        if claim.id in seen:
            raise PliantError(f"{path}: claim {claim.id!r} stands twice")
        if claim.source not in found.sources:
            raise PliantError(
                f"{path}: claim {claim.id!r} has the source {claim.source!r}, which `sources` does not list"
            )
        seen.add(claim.id)
    return found.claims


@dataclass(frozen=True)
class Verdict:
    """What a study says of a claim: the outcome, the paper's figure, ours, the test, and a sentence that puts it plainly.

    Of a claim that was not tested, `ours` and `test` are empty and the sentence says why.
    """

    claim: Claim
    outcome: Outcome
    paper: str
    ours: str
    test: str
    sentence: str


Measurements = Mapping[str, pd.DataFrame]
Check = Callable[[Claim, Results, Measurements], Verdict]
MeasuredCheck = Callable[[Claim, Measurements], Verdict]
_checks: dict[str, Check] = {}
_measured: dict[str, MeasuredCheck] = {}


def check_of(claim_id: str) -> Callable[[Check], Check]:
    """Register a check on runs. It raises PliantError with the reason where the claim cannot be tested."""

    def register(check: Check) -> Check:
        _checks[claim_id] = check
        return check

    return register


def measured_check_of(claim_id: str) -> Callable[[MeasuredCheck], MeasuredCheck]:
    """Register a check on measurements alone, which needs no runs. It raises as those of `check_of`."""

    def register(check: MeasuredCheck) -> MeasuredCheck:
        _measured[claim_id] = check
        return check

    return register


def judge(claim: Claim, results: pd.DataFrame | None, measurements: Measurements | None = None) -> Verdict:
    """What the results say of one claim.

    Args:
        results: one row a run (`pliant.study`); None where there are measurements alone.
        measurements: further tables by name. "plasticity": the rows of `pliant.measure.result.Plasticity`; if several
            were measured, with columns data and model that tell them apart. "steps": what runs logged, with columns run,
            step, loss and grad_norm. "starts": how they began, as `pliant.study.results.starts` has it.

    Raises:
        PliantError: the table lacks what every run has, or its accuracies are no fractions.
    """
    from pliant.study import checks  # noqa: F401  (registers them)

    table = None if results is None else Results(results)
    try:
        if claim.id in _measured:
            return _measured[claim.id](claim, measurements or {})
        if claim.id not in _checks:
            needed = claim.holds_when or "a check of its own"
            return untested(claim, f"a results table does not show it; it needs {needed}")
        if table is None:
            return untested(claim, "there are no runs")
        return _checks[claim.id](claim, table, measurements or {})
    except PliantError as reason:
        return untested(claim, str(reason))


def judge_all(results: pd.DataFrame, measurements: Measurements | None = None) -> list[Verdict]:
    """Verdicts on all claims of the package, in their order; raises as `judge`."""
    return [judge(claim, results, measurements) for claim in read_claims()]


def untested(claim: Claim, reason: str) -> Verdict:
    """The verdict on a claim that could not be tested, with why."""
    return Verdict(claim, "not tested", _figure(claim), "", "", f"Not tested: {reason}.")


def verdict(claim: Claim, holds: bool, ours: str, test: str, sentence: str) -> Verdict:
    """The verdict of a check that was run."""
    return Verdict(claim, "holds" if holds else "does not hold", _figure(claim), ours, test, sentence)


def _figure(claim: Claim) -> str:
    """The paper's numbers; the claim itself where it has none apart."""
    if claim.figure is None:
        return claim.says
    return (
        listed({name: value for name, value in claim.figure.items() if name != "unit"})
        + f" ({claim.figure.get('unit', '')})"
    )


def listed(values: Mapping[Any, float | str]) -> str:
    """Named numbers on one line."""
    return ", ".join(
        f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )
