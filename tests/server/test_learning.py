"""What the runs of a real server teach: kept in its user folder, and shown beside what is measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REFUSED, node_called

from scripts import comfyui_tree
from scripts.comfy_client import ComfyClient, Prompt
from scripts.comfy_server import ComfyServer
from scripts.demo_models import ensure_models
from scripts.places import demo_models


def measured(client: ComfyClient, prompt: Prompt) -> dict[str, Any]:
    """Run a prompt; return what was measured of each component that it used."""
    report = client.run(prompt).outputs[node_called(prompt, "LayerwiseOffload_PlacementReport")]
    (data,) = report["placement_report"]
    return {row["component"]: row["measured"] for row in data["rows"]}


def test_the_second_run_was_predicted(
    changed: Callable[..., Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERWISE_OFFLOAD_LEARN", "on")
    ensure_models(demo_models())
    with ComfyServer(Path(sys.executable), comfyui_tree.require(), demo_models()) as server:
        client = ComfyClient(server.url)
        first, second = (measured(client, changed("KSampler", seed=seed)) for seed in (1, 2))
        assert {row["predicted"] for row in first.values()} == {None}
        assert second["vae"]["in_this_run"]
        assert second["vae"]["predicted"] == pytest.approx(first["vae"]["computing"], rel=0.01)
        kept = server.base / "user" / "layerwise_offload" / "learned"
        assert [path.name for path in kept.iterdir()] == ["runs.json"]
        models = json.loads((kept / "runs.json").read_text())["models"]
        assert len(models) == len(first)
        assert server.tracebacks(but=REFUSED) == []
