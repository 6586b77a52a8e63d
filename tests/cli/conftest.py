"""Running the command line inside the test's process."""

from __future__ import annotations

import sys

import pytest

from pliant.cli import main


@pytest.fixture
def pliant(monkeypatch, capsys):
    """Run a command; returns exit code, standard output, standard error."""

    def call(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pliant", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call
