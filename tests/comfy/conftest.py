"""Real ComfyUI in this process, on the CPU. One tree per run: `COMFYUI_PATH`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _add_comfyui_to_the_path() -> None:
    tree = os.environ.get("COMFYUI_PATH", "")
    if not Path(tree, "comfy", "model_management.py").is_file():
        pytest.exit(
            f"COMFYUI_PATH is “{tree}”, which is no ComfyUI tree; run `make test`, which sets it",
            returncode=4,
        )
    sys.path.insert(0, tree)  # first: ComfyUI's own nodes.py must win over our package of that name
    import comfy.cli_args

    comfy.cli_args.args.cpu = True


_add_comfyui_to_the_path()
