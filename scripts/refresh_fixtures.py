"""Derive committed files: API twins, node schemas and English node texts from a running ComfyUI, and the JSON Schema
of policy files. `make fixtures`.

A changed fixture in a diff is a changed promise to saved workflows: read it before committing it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from offload_runtime.policy.files.schema import json_schema

from . import comfyui_tree, locales, widget_values, workflow
from .comfy_client import ComfyClient
from .comfy_server import ComfyServer
from .demo_models import ensure_models
from .places import ROOT, demo_models, shown
from .problem import Problem, run

FIXTURES = ROOT / "tests" / "server" / "fixtures"
EXAMPLES = ROOT / "example_workflows"
SCHEMAS = FIXTURES / "node_schemas.json"
POLICY_SCHEMA = ROOT / "web" / "policy.schema.json"
# What saved workflows and API clients depend on. The rest (tooltips, say) differs between ComfyUI versions.
KEPT_OPTIONS = ("default", "options", "min", "max", "multiline")
# Nodes with the widgets of ComfyUI's own loaders, whose lists are of files, or of what a version knows.
COMFYUIS_LISTS = tuple(
    f"{workflow.PACK_PREFIX}Load{what}"
    for what in ("CLIP", "DualCLIP", "VAE", "CLIPVision", "DiffusionModel", "Checkpoint")
)


def main() -> None:
    ensure_models(demo_models())
    with ComfyServer(Path(sys.executable), comfyui_tree.require(), demo_models()) as server:
        object_info = ComfyClient(server.url).object_info()
    require_growth(json.loads(SCHEMAS.read_text(encoding="utf-8")), schemas(object_info))
    files = {
        **{twin(file): workflow.load(file, object_info) for file in sorted(EXAMPLES.glob("*.json"))},
        SCHEMAS: schemas(object_info),
        locales.ENGLISH: locales.node_texts(object_info),
        POLICY_SCHEMA: json_schema(),
    }
    for file, content in files.items():
        file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"written: {shown(file)}")


def twin(example: Path) -> Path:
    """Where the API form of a shipped workflow is kept."""
    return FIXTURES / f"{example.stem}.api.json"


def schemas(object_info: dict[str, Any]) -> dict[str, Any]:
    """The pack's nodes as far as saved workflows depend on them."""
    return {
        node_id: {
            "required": _inputs(node_id, info["input"].get("required", {})),
            "optional": _inputs(node_id, info["input"].get("optional", {})),
            "outputs": [list(pair) for pair in zip(info["output_name"], info["output"], strict=True)],
        }
        for node_id, info in sorted(object_info.items())
        if node_id.startswith(workflow.PACK_PREFIX)
    }


def require_growth(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Refuse schemas that would read saved workflows otherwise: their values and links go by position.

    Raises:
        Problem: a widget or an output is gone, or has another place.
    """
    for node_id, kept in before.items():
        for what, places in (("widgets", widgets), ("outputs", outputs)):
            earlier, now = places(kept), places(after[node_id]) if node_id in after else []
            if now[: len(earlier)] != earlier:
                raise Problem(
                    f"{node_id}: the {what} were {', '.join(earlier)} and are {', '.join(now)}; workflows hold them "
                    "by position, so only add at the end."
                )


def widgets(schema: dict[str, Any]) -> list[str]:
    """Names of a node's widgets, in the order in which a workflow holds their values."""
    inputs = schema["required"] + schema["optional"]
    return [name for name, kind, _ in inputs if kind in widget_values.TYPES]


def outputs(schema: dict[str, Any]) -> list[str]:
    """Names of a node's outputs, in the order in which a workflow's links count them."""
    return [name for name, _ in schema["outputs"]]


def _inputs(node_id: str, inputs: dict[str, Any]) -> list[list[Any]]:
    """As lists, because the order is part of the promise: workflows store widget values by position."""
    kept = [key for key in KEPT_OPTIONS if key != "options" or node_id not in COMFYUIS_LISTS]
    return [
        [name, config[0], {key: config[1][key] for key in kept if key in (config[1] or {})}]
        for name, config in inputs.items()
    ]


if __name__ == "__main__":
    run(main)
