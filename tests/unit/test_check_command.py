"""`python -m offload_runtime check` from a terminal, and that it needs nothing but what the registry distributes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offload_runtime.policy.machine_check import FILE_NAME, parse_machine_check

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = [
    line.rstrip("/")
    for line in (ROOT / ".comfyignore").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def check(cwd: Path, module: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, "check", *options]
    variables = {**os.environ, "COMFYUI_PATH": "", "PYTHONPATH": "", **environment}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pack as the registry hands it out, in a folder for custom nodes of a ComfyUI that is not there."""
    pack = tmp_path_factory.mktemp("home") / "custom_nodes" / "layerwise-offload"
    ignored = shutil.ignore_patterns(*LEFT_OUT, ".git")
    shutil.copytree(ROOT, pack, ignore=ignored)
    assert not any((pack / name).exists() for name in ("bench", "tests", "scripts"))
    return pack


def test_the_published_pack_checks_a_machine_and_keeps_the_result_where_it_is(published: Path) -> None:
    done = check(published, "offload_runtime")
    assert done.returncode == 0, done.stderr
    found = parse_machine_check((published / FILE_NAME).read_bytes())
    assert found.holds
    assert found.verdicts
    assert f"written to {FILE_NAME}" in done.stdout
    assert done.stderr.splitlines()[0] == "  0% disk"
    assert done.stderr.splitlines()[-1].startswith("100%")


def test_from_the_folder_above_the_pack_is_named_as_it_is_installed(published: Path) -> None:
    file = published.parents[1] / "result.json"
    module = "custom_nodes.layerwise-offload.offload_runtime"
    done = check(published.parents[1], module, "-o", str(file))
    assert done.returncode == 0, done.stderr
    text = file.read_text(encoding="utf-8")
    assert parse_machine_check(text.encode()).page_cache
    assert str(Path.home()) not in text
    assert "/" not in text.replace("GB/s", "")


def test_a_folder_that_is_not_there_is_a_sentence_before_anything_is_measured(tmp_path: Path) -> None:
    done = check(ROOT, "offload_runtime", "-o", str(tmp_path / "no" / "machine.json"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "cannot be written: there is no folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_comfyui_that_does_not_start_is_a_line_and_torch_is_used(tmp_path: Path) -> None:
    (tmp_path / "comfy").mkdir()
    (tmp_path / "comfy" / "model_management.py").write_text("raise OSError('broken')\n")
    done = check(ROOT, "offload_runtime", "-o", str(tmp_path / "m.json"), COMFYUI_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "ComfyUI is here but does not start" in done.stderr
    assert parse_machine_check((tmp_path / "m.json").read_bytes()).comfyui == ""


@pytest.mark.skipif(sys.platform == "win32", reason="There is no such signal.")
def test_who_stops_it_gets_a_line_and_no_file(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    command = [sys.executable, "-m", "offload_runtime", "check", "-o", str(file)]
    variables = {**os.environ, "COMFYUI_PATH": "", "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=variables, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "  0% disk\n"
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert running.returncode == 130
    assert said.splitlines()[-1] == "stopped; nothing was kept"
    assert list(tmp_path.iterdir()) == []


def test_other_commands_need_no_torch() -> None:
    code = "import sys, offload_runtime.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
