"""Derive the API twin of the shipped workflow from a running ComfyUI's node definitions: `make twin`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from . import comfyui_tree, workflow
from .comfy_client import ComfyClient
from .comfy_server import ComfyServer
from .demo import EXAMPLE
from .places import ROOT, demo_models, shown
from .problem import run

TWIN = ROOT / "tests" / "server" / "fixtures" / "placement_policy.api.json"


def main() -> None:
    with ComfyServer(Path(sys.executable), comfyui_tree.require(), demo_models()) as server:
        prompt = workflow.load(EXAMPLE, ComfyClient(server.url).object_info())
    TWIN.write_text(json.dumps(prompt, indent=2) + "\n", encoding="utf-8")
    print(f"written: {shown(TWIN)}")


if __name__ == "__main__":
    run(main)
