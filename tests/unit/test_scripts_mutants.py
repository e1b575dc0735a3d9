"""The list of mutants stays true: every line is there once, and every test file exists."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts import mutants
from scripts.places import ROOT
from scripts.problem import Problem

LISTED = mutants.mutants()


def test_names_are_distinct() -> None:
    names = [mutant.name for mutant in LISTED]
    assert len(set(names)) == len(names)
    assert len(names) >= 60


@pytest.mark.parametrize("mutant", LISTED, ids=lambda mutant: mutant.name)
def test_its_line_is_there_and_what_replaces_it_is_python(mutant: mutants.Mutant, tmp_path: Path) -> None:
    copy = tmp_path / mutant.file
    copy.parent.mkdir(parents=True)
    shutil.copy(ROOT / mutant.file, copy)
    mutant.apply(tmp_path)
    assert copy.read_text(encoding="utf-8") != (ROOT / mutant.file).read_text(encoding="utf-8")
    compile(copy.read_text(encoding="utf-8"), str(copy), "exec")
    for test in mutant.tests:
        if test.startswith("tests/"):
            assert (ROOT / test.split("::")[0]).exists()


def test_a_line_that_has_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("one\n")
    gone = mutants.Mutant("a lost line", "file.py", "two", "pass", (), False)
    with pytest.raises(Problem, match=r"“a lost line”: its line is 0 times in file.py: two"):
        gone.apply(tmp_path)
