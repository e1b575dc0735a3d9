"""What the README tells a person to type works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]


def test_the_two_commands_come_first() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_knows_the_target(command: str) -> None:
    """Running them here would run this test again; the floors are what they run."""
    subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python ")])
def test_python_commands_run(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)[1:]
    written = [place + 1 for place, word in enumerate(words) if word == "-o"]
    for place in written:
        words[place] = str(tmp_path / words[place])
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert all(Path(words[place]).is_file() for place in written)


def test_nothing_else_is_promised() -> None:
    assert all(c.startswith(("make ", "python -m ")) for c in COMMANDS)


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"[\w-]+/[\w./-]*\w", re.sub(r"```.*?```", "", README, flags=re.DOTALL))))
)
def test_files_and_folders_that_are_named_exist(path: str) -> None:
    outside = ("advanced/", "ComfyUI/")  # a menu, and the person's own installation
    assert path.startswith(outside) or (ROOT / path).exists()
