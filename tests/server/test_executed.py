"""What a run tells the browser about the policy nodes."""

from __future__ import annotations

from typing import Any

from scripts.comfy_client import ComfyClient, Prompt

VAE = "demo_vae_16ch.safetensors"


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def ours(kind: str, **inputs: Any) -> dict[str, Any]:
    return node(f"LayerwiseOffload_{kind}", **inputs)


def told(client: ComfyClient, prompt: Prompt, node_id: str) -> dict[str, Any]:
    (decided,) = client.run(prompt).outputs[node_id]["placement_decisions"]
    return decided


def chain() -> Prompt:
    """A policy with an override between it and the loader, and a report."""
    return {
        "1": node("VAELoader", vae_name=VAE),
        "2": ours("PlacementPolicy", vae="auto", mode="memory"),
        "3": ours("SetPlacement", component="vae", placement="layerwise", base=["2", 0]),
        "4": ours("Loader", vae=["1", 0], policy=["3", 0]),
        "5": ours("PlacementReport", placements=["4", 4]),
    }


def test_the_loader_tells_which_policy_nodes_it_had_and_what_came_of_them(client: ComfyClient) -> None:
    decided = told(client, chain(), "4")
    assert decided["policy_nodes"] == {"2": {"vae": "auto", "mode": "memory"}}
    assert decided["settings"] == {"mode": {"value": "memory", "asked_by": "Placement Policy, node 2"}}
    (row,) = decided["rows"]
    assert (row["component"], row["group"], row["decided"]) == ("vae", "vae", "layerwise")
    assert row["asked_by"] == "Set Placement, node 3"
    assert row["why"]


def test_the_report_tells_it_with_what_is_applied(client: ComfyClient) -> None:
    decided = told(client, chain(), "5")
    assert list(decided["policy_nodes"]) == ["2"]
    assert [row["applied"] for row in decided["rows"]] == ["layerwise"]


def test_a_report_of_loaders_with_different_policies_leaves_it_to_them(client: ComfyClient) -> None:
    prompt = chain() | {
        "6": ours("PlacementPolicy", vae="resident"),
        "7": ours("Loader", vae=["1", 0], policy=["6", 0], placements=["4", 4]),
        "8": ours("PlacementReport", placements=["7", 4]),
    }
    outputs = client.run(prompt).outputs
    nodes = {i: list(outputs[i]["placement_decisions"][0]["policy_nodes"]) for i in ("5", "7", "8")}
    assert nodes == {"5": ["2"], "7": ["6"], "8": []}
    assert [row["component"] for row in outputs["7"]["placement_decisions"][0]["rows"]] == ["vae"], (
        "it is one model"
    )


def test_a_linked_value_is_not_told_as_typed(client: ComfyClient) -> None:
    prompt = chain() | {"9": node("PrimitiveString", value="50%")}
    prompt["2"]["inputs"]["vram_budget"] = ["9", 0]
    decided = told(client, prompt, "4")
    assert decided["policy_nodes"] == {"2": {"vae": "auto", "mode": "memory"}}
    assert decided["settings"]["vram_budget"]["value"] == "50%"
