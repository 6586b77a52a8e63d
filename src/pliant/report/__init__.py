"""What a run looks like: one page for people, one picture for a README. Reads the run folder and nothing else."""

from pliant.report.page import hardest, write
from pliant.report.picture import picture

__all__ = ["hardest", "picture", "write"]
