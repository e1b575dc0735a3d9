"""What the pages for contributors name is there: files, folders, what is in a file, commands."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}

_BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
_SUFFIX = r"\.(?:py|md|mjs|json|yaml|toml)"


def quoted(page: str) -> list[str]:
    """What a page quotes as code, outside of its blocks; a quotation may go over the end of a line."""
    found = re.findall(r"`([^`]+)`", _BLOCK.sub("", TEXTS[page]))
    return sorted({" ".join(text.split()) for text in found})


QUOTED = sorted({text for page in PAGES for text in quoted(page)})
COMMANDS = sorted(
    {
        line
        for text in TEXTS.values()
        for kind, block in _BLOCK.findall(text)
        if kind == "sh"
        for line in block.splitlines()
    }
    | {text for text in QUOTED if text.startswith(("make ", "python "))}
)
PATHS = [text for text in QUOTED if re.fullmatch(rf"[\w./-]*(?:/|{_SUFFIX})(?:::[\w.]+)?", text)]


def names_in(path: Path) -> set[str]:
    """What a module defines at its top, and the methods of its classes as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("named", PATHS)
def test_what_is_named_exists(named: str) -> None:
    path, _, name = named.partition("::")
    assert (ROOT / path).exists()
    assert not name or name in names_in(ROOT / path)


def test_the_pages_name_much() -> None:
    """Or the patterns above would find nothing, and say nothing."""
    assert sum("::" in path for path in PATHS) > 30
    assert len(PATHS) > 70
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_there(command: str) -> None:
    words = list(itertools.dropwhile(lambda word: re.match(r"[A-Z_]+=", word), shlex.split(command)))
    if words[0] == "make":
        subprocess.run([*words, "--dry-run"], cwd=ROOT, check=True, capture_output=True)
        return
    assert words[:2] == ["python", "-m"]
    if words[2] == "pytest":
        paths = list(itertools.takewhile(lambda word: word != "-k", words[3:]))
        assert paths
        assert all((ROOT / path).exists() for path in paths)
    else:
        path = ROOT.joinpath(*words[2].split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_the_architecture_is_read_in_one_sitting() -> None:
    assert len(TEXTS["docs/architecture.md"].splitlines()) < 200


@pytest.mark.parametrize("page", PAGES)
def test_the_readme_links_the_page(page: str) -> None:
    assert f"]({page})" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["LAYERWISE_OFFLOAD_LOG", "LAYERWISE_TREES", "LAYERWISE_JOBS", "COMFYUI_PATH"]
)
def test_variables_are_read_somewhere(name: str) -> None:
    assert name in TEXTS["CONTRIBUTING.md"]
    sources = [*(ROOT / "scripts").glob("*.py"), *(ROOT / "offload_runtime").glob("*.py")]
    assert any(f'"{name}"' in source.read_text(encoding="utf-8") for source in sources)


def test_every_floor_is_described() -> None:
    from scripts.floors import FLOORS

    assert all(f"| {floor} |" in TEXTS["CONTRIBUTING.md"] for floor in FLOORS)


def test_every_backend_of_the_runtime_is_in_the_table() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}::{node.name}"
        for path in (ROOT / "offload_runtime" / "adapter").glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name != "Backend" and _is_backend(node)
    }
    assert {
        f"| `{name}` |" for name in found if f"| `{name}` |" not in TEXTS["docs/architecture.md"]
    } == set()


def _is_backend(node: ast.ClassDef) -> bool:
    """Those that are chosen: with `attach` and `applied`, or derived from one that has them and is not chosen."""
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    return "ABC" not in bases and ({"attach", "applied"} <= methods or "Layerwise" in bases)
