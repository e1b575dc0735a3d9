"""Wrong input ends in one clear sentence, and in nothing half-written."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import node_called

from scripts.comfy_client import DIRECT, ComfyClient, Prompt
from scripts.comfy_server import ComfyServer, claim_port
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
    assert re.search("did you mean '?layerwise'?\\?", sentence)
    assert sentence.count("layerwize") == 1, "said more than once"


def test_a_budget_with_a_typo_is_refused_with_what_a_budget_looks_like(
    client: ComfyClient, changed: Callable[..., Prompt]
) -> None:
    sentence = refusal(client, changed(POLICY, vram_budget="6GBB"))
    assert sentence.startswith("node 7 (Placement Policy")
    assert "6GBB" in sentence
    assert re.search(r"\b6 ?(GB|GiB)\b", sentence), "does not show a right one"
    assert sentence.count("6GBB") == 1, "said more than once"


ALL_AUTO = dict.fromkeys(
    ("mode", "text_encoder", "image_encoder", "vae", "diffusion_model", "vram_budget", "strict"), "auto"
)
SET_AUTO = dict.fromkeys(("component", "placement", "vram_budget", "host", "device"), "auto")
TEXT = "mode: auto\ncomponents:\n  vae: gpu\n"


def saved(kind: str, **inputs: str) -> Prompt:
    """A policy node as a browser queues it, and an output for it."""
    return {
        "1": {"class_type": f"LayerwiseOffload_{kind}", "inputs": inputs},
        "2": {"class_type": "LayerwiseOffload_SavePolicy", "inputs": {"policy": ["1", 0]}},
    }


def errors_on_widgets(client: ComfyClient, prompt: Prompt) -> list[tuple[str, str]]:
    """What ComfyUI's own frontend shows: for each error the widget that it marks, and its text."""
    body = json.dumps({"prompt": prompt}).encode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        DIRECT.open(urllib.request.Request(f"{client.url}/prompt", body), timeout=60)
    with refused.value as answer:
        (node,) = json.load(answer)["node_errors"].values()
    return [(error["extra_info"]["input_name"], error["details"]) for error in node["errors"]]


@pytest.mark.parametrize(
    ("prompt", "widget", "says"),
    [
        (saved("PlacementPolicy", **ALL_AUTO | {"vram_budget": "8"}), "vram_budget", "did you mean 8GB?"),
        (saved("PlacementPolicy", **ALL_AUTO | {"vram_budget": "6GİB"}), "vram_budget", "such as 6GB"),
        (
            saved("SetPlacement", **SET_AUTO | {"component": "vae", "vram_budget": "8"}),
            "vram_budget",
            "did you mean 8GB?",
        ),
        (saved("SetPlacement", **SET_AUTO | {"vram_budget": "6 \u212aB"}), "vram_budget", "such as 6GB"),
        (saved("LoadPolicy", file="auto", text=TEXT), "text", "line 3, column 8: placement: “gpu” is not"),
    ],
)
def test_what_is_typed_wrong_is_one_error_on_its_own_widget(
    client: ComfyClient, prompt: Prompt, widget: str, says: str
) -> None:
    ((marked, text),) = errors_on_widgets(client, prompt)
    assert marked == widget
    assert text.startswith(f"{widget} - “") or widget == "text"
    assert says in text
    assert not re.search(r"\bdit\b", text), "a word that no widget has"


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        *(
            (saved("PlacementPolicy", **ALL_AUTO | {widget: word}), [widget, word])
            for widget, word in {
                "mode": "sped",
                "diffusion_model": "residnt",
                "vae": "gpu",
                "strict": "maybe",
            }.items()
        ),
        (saved("SetPlacement", **SET_AUTO | {"component": "tex_encoder"}), ["did you mean text_encoder"]),
        (saved("SetPlacement", **SET_AUTO | {"component": "vae", "host": "pined"}), ["host", "pined"]),
        (saved("SetPlacement", **SET_AUTO | {"component": "vae", "device": "second"}), ["device: “second”"]),
        (saved("LoadPolicy", file="../x.yaml", text=""), ["../x.yaml"]),
        (saved("LoadPolicy", file="nowhere", text=""), ["nowhere"]),
    ],
)
def test_a_word_that_no_widget_offers_is_one_sentence(
    client: ComfyClient, prompt: Prompt, says: list[str]
) -> None:
    """Through the API, or from an old file: newer versions check lists themselves, older ones leave it to the node."""
    sentence = refusal(client, prompt)
    assert sentence.startswith("node 1 (")
    assert sentence.count("node 1 (") == 1
    assert all(words in sentence for words in says), sentence
    assert not re.search(r"\bdit\b", sentence), "a word that no widget has"


@pytest.mark.parametrize(
    "component", ["text_encoder_4", "text_encoder_7, VAE", "Condition-Image-Encoder_2", "none"]
)
def test_a_component_may_be_one_that_the_list_does_not_name(client: ComfyClient, component: str) -> None:
    prompt = saved("SetPlacement", **SET_AUTO | {"component": component, "placement": "cpu"})
    (text,) = client.run(prompt).outputs["2"]["text"]
    names = [name.strip().lower().replace("-", "_") for name in component.split(",") if name != "none"]
    assert [line.split(":")[0].strip() for line in text.splitlines() if ": cpu" in line] == sorted(names)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mine now", "mine now.offload.yaml"),
        ("策略 é (2)", "策略 é (2).offload.yaml"),
        ("policy.offload (1).yaml", "policy.offload (1).yaml"),
        ("policy.json", "policy.json"),
        ("old.offload.json", "old.offload.json"),
    ],
)
def test_what_was_saved_under_a_name_is_loaded_under_it(
    client: ComfyClient, server: ComfyServer, name: str, file: str
) -> None:
    prompt = saved("SetPlacement", **SET_AUTO | {"component": "vae", "placement": "cpu"})
    prompt["2"]["inputs"]["file"] = name
    assert client.run(prompt).outputs["2"]["text"][0] == f"saved as {file}"
    path = server.base / "user" / "layerwise_offload" / file
    if file.endswith(".json"):
        assert json.loads(path.read_text("utf-8"))["components"] == {"vae": "cpu"}
    else:
        assert "vae: cpu  # Set Placement, node 1" in path.read_text("utf-8")
    listed = client.object_info()["LayerwiseOffload_LoadPolicy"]["input"]["optional"]["file"][1]["options"]
    assert file in listed
    for asked in {name, file}:
        (text,) = client.run(saved("LoadPolicy", file=asked, text="")).outputs["2"]["text"]
        assert f"vae: cpu  # file {file}" in text


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
