"""`claims.md`: the verdicts of a study's page as a document that stands on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pliant.data.wording import counted

if TYPE_CHECKING:
    from pliant.study.claims import Verdict

NAME = "claims.md"


@dataclass(frozen=True)
class Document:
    """What the document says besides verdicts.

    Attributes:
        source: the paper, as the claims name it; only its claims are listed.
        says: what was run, in a sentence.
        when: the day.
        differs: where the study is not what the paper did.
    """

    source: str
    says: str
    when: str
    differs: Sequence[str] = ()


def claims_document(
    verdicts: Sequence[Verdict], document: Document, title: str, command: str | None, counts: str, notes: Sequence[str]
) -> str:
    """Markdown: how it was made, a table with one row a claim, and what each finding means in a sentence."""
    own = [each for each in verdicts if each.claim.source == document.source]
    held, failed = (sum(each.outcome == outcome for each in own) for outcome in ("holds", "does not hold"))
    lines = [
        f"# {title}", "",
        document.says, "",
        f"Written on {document.when} by this command; nothing here is typed by hand.", "",
        *(["```", command, "```", ""] if command else []),
        f"{counts}. Of {len(own)} claims {counted(held, 'holds', 'hold')}, {counted(failed, 'does', 'do')} not, "
        f"{counted(len(own) - held - failed, 'was', 'were')} not tested.", "",
        *(f"- {note}" for note in notes), *([""] if notes else []),
        "| claim | the paper | ours | test | verdict |", "| --- | --- | --- | --- | --- |",
        *(
            _row(each.claim.says, each.paper if each.paper != each.claim.says else "", each.ours, each.test, f"**{each.outcome}**")
            for each in own
        ), "",
        "## In words", "",
        *(f"- **{each.claim.id}** ({each.outcome}): {_flat(each.sentence.removeprefix('Not tested: '))}" for each in own), "",
    ]  # fmt: skip
    if document.differs:
        lines += ["## Where this is not the paper's protocol", "", *(f"- {each}" for each in document.differs), ""]
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(_flat(cell).replace('|', chr(92) + '|') or '-' for cell in cells)} |"


def _flat(text: str) -> str:
    return " ".join(text.split())
