"""ComfyUI's own workflow templates: the VAE that image and video models share is told apart in all of them."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.policy import vae_use
from scripts import workflow
from scripts.problem import Problem

FOLDERS = Path(sysconfig.get_paths()["purelib"])
PICTURES = ("qwen_image_vae", "qwen_image_layered_vae")
FILM = ("wan_2.1_vae", "wan2_1_vae", "wan2.2_vae")
EITHER = ("image_", "video_bernini_r_image_editing")
"""Templates that make a picture with the VAE of Wan, or in several frames."""


def prompts(object_info: dict[str, Any]) -> Iterator[tuple[str, workflow.Prompt]]:
    """Every template that this ComfyUI has all nodes for."""
    for file in sorted(FOLDERS.glob("comfyui_workflow_templates*/templates/*.json")):
        try:
            yield file.stem, workflow.load(file, object_info)
        except Problem:  # an index, or nodes of a service
            continue


def test_templates_tell_pictures_from_film(object_info: dict[str, Any]) -> None:
    found: dict[str, bool] = {}
    wrong = []
    for template, prompt in prompts(object_info):
        for name, node in prompt.items():
            file = str(node["inputs"].get("vae_name", "")).lower()
            film = file.startswith(FILM)
            if (not film and not file.startswith(PICTURES)) or (film and template.startswith(EITHER)):
                continue
            use = vae_use(prompt, name, 0)
            found[template] = film
            if ((use.frames or 0) > 1 or use.video is True) is not film:
                wrong.append((template, file, use))
    if not found:
        pytest.skip("the templates are not installed here")
    assert wrong == []
    assert set(found.values()) == {True, False}
