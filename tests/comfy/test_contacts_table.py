"""Whatever our code uses of ComfyUI is in the table of contacts, and nothing else is."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from offload_runtime.adapter.contacts import CONTACTS

ROOT = Path(__file__).resolve().parents[2]

COMFYUI = ("comfy", "comfy_execution", "comfy_aimdo", "comfyui_version", "folder_paths")
"""ComfyUI's own modules; the V3 API (`comfy_api`) is a promise."""

PATCHERS = {"patcher", "_patcher", "_base", "left"}
"""What a patcher is called in our code."""

NO_CONTACT = {"torch", "psutil", "_profiler", "sys"}
"""What else is asked for attributes by name."""


PUT_TOGETHER = {"memory_used_encode", "memory_used_decode", "bias_lowvram_function"}
"""Names that our code makes of two parts."""


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(
        [*(ROOT / "offload_runtime" / "adapter").glob("*.py"), *(ROOT / "nodes").glob("*.py")]
    ):
        if path.name != "contacts.py":
            yield path.name, ast.parse(path.read_text())


def _named(*places: str) -> set[str]:
    every = [c for group in CONTACTS.values() for c in group if not places or c.place in places]
    return {name for contact in every for name, _, _ in contact.each()}


def _places() -> set[str]:
    return {contact.place for group in CONTACTS.values() for contact in group}


class _Uses(ast.NodeVisitor):
    """Collects (place, name) of what a file uses of ComfyUI's modules, and names that it asks of its objects."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        self.used: set[tuple[str, str]] = set()
        self.of_patchers: set[str] = set()
        self.of_models: set[str] = set()
        self.asked: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] in COMFYUI:
                self.modules[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level == 0 and node.module and node.module.split(".")[0] in COMFYUI:
            for alias in node.names:
                self.used.add((node.module, alias.name))
                self.modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._uses(node.value, node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        asks = (
            isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and len(node.args) > 1
        )
        if asks and isinstance(node.args[1], ast.Constant):
            name = str(node.args[1].value)
            self._uses(node.args[0], name)
            root = _dotted(node.args[0]).split(".")[0]
            if root not in self.modules and root not in NO_CONTACT and not name.startswith("__"):
                self.asked.add(name)
        self.generic_visit(node)

    def _uses(self, base: ast.expr, name: str) -> None:
        path = _dotted(base)
        first, _, rest = path.partition(".")
        if first in self.modules:
            place = ".".join(filter(None, (self.modules[first], rest)))
            if place in _places() or place in sys.modules:
                self.used.add((place, name))
        last = path.rpartition(".")[2]
        if name.startswith("__"):
            return
        if last in PATCHERS:
            self.of_patchers.add(name)
        if last == "model" and path.split(".")[-2:-1] and path.split(".")[-2] in PATCHERS:
            self.of_models.add(name)


def _dotted(node: ast.expr) -> str:
    """Return `mm.VRAMState.NO_VRAM` of an expression, calls and getattr seen through; "" where there is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}".lstrip(".")
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id == "getattr"
        if named and isinstance(node.args[1], ast.Constant):
            return f"{_dotted(node.args[0])}.{node.args[1].value}".lstrip(".")
        return _dotted(node.func)
    return ""


def _uses(tree: ast.Module) -> _Uses:
    uses = _Uses()
    uses.visit(tree)
    return uses


@pytest.mark.parametrize(("file", "tree"), [pytest.param(f, t, id=f) for f, t in _sources()])
def test_whatever_our_code_uses_of_comfyui_is_in_the_table(file: str, tree: ast.Module) -> None:
    uses = _uses(tree)
    for place_of, name in sorted(uses.used):
        whole = f"{place_of}.{name}"
        assert name in _named(place_of) or whole in _places() or whole in sys.modules, whole
    patchers = _named("patcher", *(p for p in _places() if p.startswith("comfy.model_patcher.ModelPatcher")))
    assert uses.of_patchers <= patchers | {"load_device"}
    assert {name for name in uses.of_models if not hasattr(nn.Module(), name)} <= _named("patcher.model")
    ours = {"model", "patcher", "get_input_embeddings"}
    assert {name for name in uses.asked if not hasattr(nn.Module(), name)} <= _named() | ours


def test_the_scan_sees_what_it_is_there_for() -> None:
    uses = _uses(
        ast.parse(
            "import comfy.model_management as mm\n"
            "from comfy.cli_args import args\n"
            "mm.new_function(); getattr(mm, 'newer', None)\n"
            "self._patcher().new_method(); patcher.model.new_state\n"
            "hasattr(vae, 'new_mark')\n"
        )
    )
    new = {("comfy.model_management", "new_function"), ("comfy.model_management", "newer")}
    assert uses.used == {*new, ("comfy.cli_args", "args")}
    assert {"new_method"} <= uses.of_patchers
    assert uses.of_models == {"new_state"}
    assert "new_mark" in uses.asked


def test_nothing_is_in_the_table_that_our_code_does_not_use() -> None:
    text = " ".join(ast.unparse(tree) for _, tree in _sources())
    assert _named() - set(re.findall(r"\w+", text)) == PUT_TOGETHER
