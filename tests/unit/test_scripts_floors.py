"""Which floors run on which ComfyUI trees, and that what did not run is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import comfyui_tree, floors, setup_env, trees
from scripts.problem import Problem


def make_tree(folder: Path, version: str) -> Path:
    for sign in comfyui_tree.SIGNS_OF_COMFYUI:
        (folder / sign).parent.mkdir(parents=True, exist_ok=True)
        (folder / sign).touch()
    (folder / "comfyui_version.py").write_text(f'__version__ = "{version}"\n', encoding="utf-8")
    return folder


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trees folder with a newer tree, something else, and the tree in use once more."""
    own = make_tree(tmp_path / "own", "1.0")
    shelf = tmp_path / "trees"
    make_tree(shelf / "newer", "2.0")
    (shelf / "pictures").mkdir()
    (shelf / "same").symlink_to(own, target_is_directory=True)
    monkeypatch.setenv("COMFYUI_PATH", str(own))
    monkeypatch.setenv("LAYERWISE_TREES", str(shelf))
    monkeypatch.setattr(trees, "_environment", lambda tree: Path(sys.executable))
    return shelf


def test_every_tree_runs_once_and_what_is_none_is_named(shelf: Path) -> None:
    runnable, left_out = trees.prepare()
    assert [r.name for r in runnable] == ["ComfyUI 1.0", "ComfyUI 2.0"]
    assert left_out == ["pictures: it is not a ComfyUI tree (no main.py in it)"]


def test_a_tree_whose_environment_fails_is_named_and_the_others_run(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tree: Path) -> Path:
        raise Problem("the disk is full")

    monkeypatch.setattr(trees, "_environment", fail)
    runnable, left_out = trees.prepare()
    assert [r.name for r in runnable] == ["ComfyUI 1.0"]
    assert "newer: the disk is full" in left_out


def test_no_folder_is_no_tree(shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAYERWISE_TREES", str(tmp_path / "nowhere"))
    assert trees.found() == []


def test_floors_with_comfyui_run_on_each_tree_and_the_others_once(shelf: Path) -> None:
    runnable, _ = trees.prepare()
    assert [job.name for job in floors.jobs(["unit", "server", "browser"], runnable)] == [
        "tests/server on ComfyUI 1.0",
        "tests/server on ComfyUI 2.0",
        "tests/unit",
        "tests/browser",
    ]


def test_an_unknown_floor_is_refused() -> None:
    with pytest.raises(Problem, match="no floor “cellar”"):
        floors.main(["cellar"])


@pytest.mark.parametrize(
    ("last_line", "code", "passed"),
    [
        ("574 passed, 12 skipped in 41.02s", 0, True),
        ("1 failed, 573 passed in 41.02s", 1, False),
        ("3 skipped in 0.02s", 0, False),  # a floor of which nothing ran says nothing
        ("no tests ran in 0.02s", 5, False),
    ],
)
def test_a_floor_passes_only_if_tests_passed(shelf: Path, last_line: str, code: int, passed: bool) -> None:
    job = floors.jobs(["unit"], trees.prepare()[0])[0]
    assert floors.Outcome(job, f"...\n{last_line}\n", code, 1.0).passed is passed


def test_the_trees_own_environment_sees_the_common_one_and_prefers_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real pair of virtual environments, without pip: what is installed in both is taken from the tree's."""
    monkeypatch.setenv("LAYERWISE_VENV", str(tmp_path / "common"))
    monkeypatch.setattr(setup_env, "install", lambda steps, python, stamp: None)
    tree = make_tree(tmp_path / "newer", "2.0")
    common = setup_env.ensure_venv(tmp_path / "common")
    python = trees._environment(tree)
    for where, interpreter in (("common", common), ("tree", python)):
        folder = trees._site_packages(interpreter)
        (folder / "both.py").write_text(f"where = {where!r}")
        (folder / f"only_{where}.py").touch()
    code = "import both, only_common, only_tree; print(both.where)"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "tree"
