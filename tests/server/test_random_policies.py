"""Forty prompts of mixed policies through HTTP: the report against what the system counts for the server."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.comfy_client import ComfyClient, Prompt
from scripts.comfy_server import ComfyServer
from scripts.places import demo_models
from scripts.problem import Problem

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PROMPTS = 40
PLACEMENTS = ("auto", "resident", "offload", "layerwise", "cpu")
FILES = {
    "text_encoder": "text_encoders/demo_clip_l.safetensors",
    "vae": "vae/demo_vae_16ch.safetensors",
}
SLACK = 1 << 20


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def ours(kind: str, **inputs: Any) -> dict[str, Any]:
    return node(f"LayerwiseOffload_{kind}", **inputs)


def prompt_of(dice: random.Random, number: int) -> tuple[Prompt, dict[str, Any]]:
    """An encode and a decode, each with a component of its own, and the report after both."""
    wishes = {name: dice.choice(PLACEMENTS) for name in FILES}
    settings = {
        "mode": dice.choice(("auto", "manual", "speed", "memory")),
        "strict": dice.choice(("auto", "on")),
        "vram_budget": dice.choice(("auto", "auto", "2GB", "25%")),
    }
    own = dice.choice(("auto", "300MB"))
    prompt: Prompt = {
        "clip": node("CLIPLoader", clip_name="demo_clip_l.safetensors", type="stable_diffusion"),
        "vae": node("VAELoader", vae_name="demo_vae_16ch.safetensors"),
        "policy": ours("PlacementPolicy", **settings, **wishes),
        "own": ours("SetPlacement", component="vae", vram_budget=own, base=["policy", 0]),
        "loader": ours("Loader", clip=["clip", 0], vae=["vae", 0], policy=["own", 0]),
        "text": node("CLIPTextEncode", clip=["loader", 1], text=f"a fox, number {number}"),
        "latent": node("EmptySD3LatentImage", width=64, height=64, batch_size=1),
        "decode": node("VAEDecode", samples=["latent", 0], vae=["loader", 2]),
        "save": node("PreviewImage", images=["decode", 0]),
        "last": node("StandIns_Both", first=["text", 0], second=["decode", 0]),
        "report": ours("PlacementReport", placements=["loader", 4], after=["last", 0]),
    }
    return prompt, {"wishes": wishes, "own": own, **settings}


def mapped_bytes(pid: int, file: Path) -> int:
    """Return how many bytes of a file a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    spans = re.findall(rf"(?m)^([0-9a-f]+)-([0-9a-f]+) .* {re.escape(str(file))}$", maps)
    return sum(int(end, 16) - int(start, 16) for start, end in spans)


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/statm").read_text().split()
    return int(status[1]) * 4096


def test_the_report_agrees_with_the_system_after_every_prompt(
    server: ComfyServer, client: ComfyClient
) -> None:
    dice = random.Random(12)
    seen = {"refused": 0, "done": 0, "file": 0, "memory": 0}
    for number in range(PROMPTS):
        prompt, asked = prompt_of(dice, number)
        loose = {
            **prompt,
            "policy": ours("PlacementPolicy", **{**prompt["policy"]["inputs"], "strict": "auto"}),
        }
        result = client.run(loose)
        ((report,),) = (o["placement_report"] for o in result.outputs.values() if "placement_report" in o)
        if asked["strict"] == "on":
            seen["refused" if refuses(client, prompt, report, asked) else "done"] += 1
        for row in report["rows"]:
            agrees(server.pid, row, asked)
            seen["file" if row["tiers"].get("file") else "memory"] += 1
    assert min(seen.values()) > 2, seen


def refuses(client: ComfyClient, prompt: Prompt, report: dict[str, Any], asked: dict[str, Any]) -> bool:
    """A strict policy is refused exactly when something of it could not be done; tell whether it was."""
    unmet = any("; but " in row["why"] for row in report["rows"]) or any(
        "budget" in n for n in report["notes"]
    )
    refusal = ""
    try:
        client.run(prompt)
    except Problem as problem:
        refusal = str(problem)
    assert bool(refusal) == unmet, (asked, report["rows"], report["notes"], refusal)
    assert "the policy is strict" in refusal or not refusal
    return unmet


def agrees(pid: int, row: dict[str, Any], asked: dict[str, Any]) -> None:
    file = demo_models() / FILES[row["component"]]
    tiers = row["tiers"]
    assert tiers.get("memory", 0) + tiers.get("file", 0) == row["bytes"], row
    assert row["device"] == "cpu"
    if tiers.get("file"):
        assert row["applied"] == "layerwise", row
        assert mapped_bytes(pid, file) >= tiers["file"] - SLACK, row
    else:
        assert row["applied"] in ("resident", "cpu", "comfyui"), row
        assert resident_bytes(pid) > tiers["memory"], row
    if row["asked"] == "layerwise":
        assert row["applied"] == "layerwise", row
