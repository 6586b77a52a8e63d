"""What a run and a measurement look like: pages for people, pictures for a README. Reads result folders alone."""

from pliant.report.comparison_page import write_comparison
from pliant.report.landscape_figure import landscape_figure
from pliant.report.page import hardest, write
from pliant.report.picture import picture
from pliant.report.plasticity_figure import plasticity_figure
from pliant.report.plasticity_page import write_plasticity
from pliant.report.study_page import write_study

__all__ = [
    "hardest", "landscape_figure", "picture", "plasticity_figure", "write", "write_comparison", "write_plasticity",
    "write_study",
]  # fmt: skip
