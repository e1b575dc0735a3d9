"""ComfyUI's own workflow templates, and empty files under every name that they load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from scripts import workflow
from scripts.comfy_client import ComfyClient, Prompt
from scripts.problem import Problem

ObjectInfo = dict[str, Any]
PACKAGE = "comfyui-workflow-templates-json"
MARKER = "marks"
MEDIA = ("png", "mp4", "wav", "glb")


def prompts(object_info: ObjectInfo) -> Iterator[tuple[str, Prompt]]:
    """Every template of the newest package that this ComfyUI has all nodes for."""
    found = metadata.distributions(name=PACKAGE)  # a tree's environment may have an older one beside it
    newest = max(found, key=lambda one: [int(part) for part in one.version.split(".")])
    folder = Path(str(newest.locate_file("comfyui_workflow_templates_json"))) / "templates"
    for file in sorted(folder.glob("*.json")):
        try:
            yield file.stem, workflow.load(file, object_info)
        except Problem:  # an index, or nodes of a service
            continue


class Stubs:
    """Empty files in a server's folders, and which input of which node lists which folder.

    Args:
        client: a client of the server.
        base: the server's base directory.
    """

    def __init__(self, client: ComfyClient, base: Path) -> None:
        folders = {name: base / "models" / name for name in client.get_json("/models")}
        for name, folder in folders.items():
            folder.mkdir(exist_ok=True)
            (folder / f"{MARKER}_{name}.safetensors").touch()
        inputs = (base / "input", base / "input" / "3d")
        inputs[1].mkdir(exist_ok=True)
        for folder in inputs:
            for suffix in MEDIA:
                (folder / f"{MARKER}.{suffix}").touch()
        self._listed: dict[tuple[str, str], Path] = {}
        self._models: set[tuple[str, str]] = set()
        for kind, info in client.object_info().items():
            for name, options in _lists(info["input"]):
                mark = next((o for o in options if isinstance(o, str) and MARKER in o), None)
                if mark is None:
                    continue
                folder = folders.get(mark.removeprefix(f"{MARKER}_").removesuffix(".safetensors"))
                self._listed[kind, name] = folder or inputs[0]
                if folder:
                    self._models.add((kind, name))

    def write(self, prompt: Prompt) -> None:
        """Make a file of every name that the prompt chooses from a folder."""
        for node in prompt.values():
            for name, value in node["inputs"].items():
                folder = self._listed.get((node["class_type"], name))
                if folder and isinstance(value, str) and Path(value).suffix:
                    file = folder / value
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.touch()

    def named(self, node: Mapping[str, Any]) -> list[Path]:
        """The model files that a node names."""
        return [
            self._listed[node["class_type"], name] / value
            for name, value in node["inputs"].items()
            if (node["class_type"], name) in self._models and isinstance(value, str) and Path(value).suffix
        ]


def _lists(inputs: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Name and choices of all inputs with a list, those that a choice brings included."""
    for group in ("required", "optional"):
        for name, config in inputs.get(group, {}).items():
            options = config[1] if len(config) > 1 else {}
            listed = config[0] if isinstance(config[0], list) else options.get("options", [])
            yield before + name, listed
            for option in listed:
                if isinstance(option, dict):
                    yield from _lists(option["inputs"], f"{before}{name}.")
