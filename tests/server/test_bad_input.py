"""Wrong input ends in one clear sentence, and in nothing half-written."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import node_called

from scripts.comfy_client import ComfyClient, Prompt
from scripts.comfy_server import claim_port
from scripts.places import ROOT
from scripts.problem import Problem

POLICY = "LayerwiseOffload_PlacementPolicy"


def refusal(client: ComfyClient, prompt: Prompt) -> str:
    with pytest.raises(Problem) as refused:
        client.run(prompt)
    return str(refused.value)


def test_an_unknown_model_file_is_named_with_the_files_there_are(
    client: ComfyClient, changed: Callable[..., Prompt]
) -> None:
    prompt = changed("Diffusion model", unet_name="demo_sd3_tiy.safetensors")
    assert refusal(client, prompt) == (
        "node 1 (Diffusion model, UNETLoader): unet_name is 'demo_sd3_tiy.safetensors', "
        "possible: demo_sd3_tiny.safetensors (did you mean 'demo_sd3_tiny.safetensors'?)."
    )


def test_a_placement_with_a_typo_is_refused_with_the_word_that_was_meant(
    client: ComfyClient, changed: Callable[..., Prompt]
) -> None:
    sentence = refusal(client, changed(POLICY, text_encoder="layerwize"))
    assert sentence.startswith("node 7 (Placement Policy")
    assert "text_encoder" in sentence
    assert "did you mean layerwise?" in sentence
    assert sentence.count("layerwize") == 1, "said more than once"


def test_a_budget_with_a_typo_is_refused_with_what_a_budget_looks_like(
    client: ComfyClient, changed: Callable[..., Prompt]
) -> None:
    sentence = refusal(client, changed(POLICY, vram_budget="6GBB"))
    assert sentence.startswith("node 7 (Placement Policy")
    assert "6GBB" in sentence
    assert re.search(r"\b6 ?(GB|GiB)\b", sentence), "does not show a right one"
    assert sentence.count("6GBB") == 1, "said more than once"


def test_a_vae_in_the_clip_socket_is_refused_with_both_types(
    client: ComfyClient, with_pack: Prompt, changed: Callable[..., Prompt]
) -> None:
    vae = node_called(with_pack, "VAELoader")
    assert refusal(client, changed("Layerwise Offload Loader", clip=[vae, 0])) == (
        "node 8 (Layerwise Offload Loader, LayerwiseOffload_Loader): input clip takes CLIP, "
        "but VAE is wired into it; connect an output of type CLIP."
    )


def test_a_refused_prompt_leaves_the_queue_empty(client: ComfyClient, changed: Callable[..., Prompt]) -> None:
    """ComfyUI would otherwise run the valid half: a report, say, without its picture."""
    refusal(client, changed("Save Image", images=["1", 0]))
    queue = client.get_json("/queue")
    assert queue["queue_pending"] == []


def run_demo(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.demo", "--output", str(output), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def sentences(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_the_demo_with_a_port_in_use_says_so_and_writes_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_demo(tmp_path / "out", "--port", str(port))
    assert done.returncode == 1
    assert len(sentences(done.stderr)) == 1
    assert done.stderr.startswith(f"error: port {port} is in use")
    assert "PORT" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_demo_with_a_policy_typo_says_so_and_writes_nothing(tmp_path: Path) -> None:
    nodes = {
        "1": ("VAELoader", {"vae_name": "demo_vae_16ch.safetensors"}),
        "2": (POLICY, {"vram_budget": "6GBB"}),
        "3": ("LayerwiseOffload_Loader", {"vae": ["1", 0], "policy": ["2", 0]}),
        "4": ("EmptySD3LatentImage", {"width": 64, "height": 64, "batch_size": 1}),
        "5": ("VAEDecode", {"samples": ["4", 0], "vae": ["3", 2]}),
        "6": ("SaveImage", {"images": ["5", 0], "filename_prefix": "typo"}),
    }
    prompt = {node_id: {"class_type": kind, "inputs": inputs} for node_id, (kind, inputs) in nodes.items()}
    file = tmp_path / "typo.json"
    file.write_text(json.dumps(prompt), encoding="utf-8")
    done = run_demo(tmp_path / "out", "--workflow", str(file))
    assert done.returncode == 1
    assert len(sentences(done.stderr)) == 1
    assert done.stderr.startswith(f"error: node 2 ({POLICY})")
    assert "6GBB" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT to send to one process")
def test_ctrl_c_in_the_middle_stops_the_server_too(tmp_path: Path) -> None:
    port = claim_port(None)
    command = [sys.executable, "-m", "scripts.demo", "--port", str(port), "--output", str(tmp_path / "out")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout
        for line in demo.stdout:
            if "rendering" in line:
                demo.send_signal(signal.SIGINT)
                break
        _, errors = demo.communicate()
    assert demo.returncode == 130
    assert errors == "stopped by Ctrl-C\n"
    assert claim_port(port) == port, "the server is still there"
    assert not (tmp_path / "out").exists()


def test_the_demo_with_a_file_that_is_no_workflow_says_so_at_once(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"placements": {}}', encoding="utf-8")
    done = run_demo(tmp_path / "out", "--workflow", str(file))
    assert done.returncode == 1
    assert len(sentences(done.stderr)) == 1
    assert "neither a workflow nor an API prompt" in done.stderr
    assert done.stdout == "", "something was begun"
