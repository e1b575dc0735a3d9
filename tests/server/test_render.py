"""Both graphs draw the same picture, and the report tells what happened."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from conftest import node_called

from scripts import workflow
from scripts.comfy_client import ComfyClient, Interrupted, Prompt, Result
from scripts.comfy_server import ComfyServer
from scripts.demo import Run, compare, render, report_of

POLICY = "LayerwiseOffload_PlacementPolicy"
REPORT = "LayerwiseOffload_PlacementReport"


def smaller(prompt: Prompt) -> Prompt:
    """The prompt at 64 by 64 pixels: every model still runs, but the VAE decodes 16 times less."""
    prompt = copy.deepcopy(prompt)
    prompt[node_called(prompt, "EmptySD3LatentImage")]["inputs"].update(width=64, height=64)
    return prompt


def picture(client: ComfyClient, result: Result) -> bytes:
    (image,) = result.images()
    return client.view(image)


@pytest.fixture(scope="session")
def queued(example: dict[str, Any], object_info: dict[str, Any]) -> Prompt:
    return workflow.to_api(example, object_info)


@pytest.fixture(scope="session")
def plain_run(server: ComfyServer, client: ComfyClient, queued: Prompt) -> Run:
    return render(server, client, workflow.without_pack(queued), "the plain graph")


@pytest.fixture(scope="session")
def pack_run(server: ComfyServer, client: ComfyClient, queued: Prompt, plain_run: Run) -> Run:
    return render(server, client, queued, "the graph with the pack")


@pytest.fixture(scope="session")
def small_plain_picture(client: ComfyClient, queued: Prompt) -> bytes:
    return picture(client, client.run(smaller(workflow.without_pack(queued))))


def test_the_pack_does_not_change_one_pixel(plain_run: Run, pack_run: Run) -> None:
    assert compare(plain_run.picture, pack_run.picture) is None


def test_the_report_says_that_the_encoders_really_ran_layer_by_layer(pack_run: Run, queued: Prompt) -> None:
    text, reports = report_of(pack_run)
    rows = {row["component"]: row for report in reports for row in report["rows"]}
    assert {"text_encoder", "text_encoder_2", "image_encoder", "vae", "diffusion_model"} <= set(rows)
    for name, layers in (("text_encoder", 12), ("text_encoder_2", 12), ("image_encoder", 24)):
        row = rows[name]
        assert (row["asked"], row["decided"], row["applied"]) == ("layerwise",) * 3
        assert row["asked_by"] == f"Placement Policy, node {node_called(queued, POLICY)}"
        assert row["how"].startswith(f"{layers} of {layers} layers run on the CPU")
        assert row["why"]
        assert row["layer_runs"] >= layers, "no layer was seen running"
        assert row["tiers"]["file"] > 0.9 * row["bytes"], "the weights are still in memory"
        assert name in text


def test_the_encoders_memory_is_free_again_when_sampling_begins(plain_run: Run, pack_run: Run) -> None:
    """The three encoders hold 1.07 GB; what is left of that is one layer's slot and what the system keeps."""
    before, after = plain_run.peak_from_sampler_on.anonymous, pack_run.peak_from_sampler_on.anonymous
    if before is None or after is None:
        pytest.skip("this system does not tell file pages from others")
    assert before - after > 700e6


@pytest.mark.parametrize(
    ("node", "change"),
    [
        ("Prompt (CLIP-L)", {"text": "a blue whale"}),
        ("Prompt (T5)", {"text": "A blue whale under the ice."}),
        ("KSampler", {"seed": 7}),
        ("StyleModelApply", {"strength": 0.0}),
    ],
)
def test_what_a_person_changes_shows_in_the_picture(
    client: ComfyClient, queued: Prompt, small_plain_picture: bytes, node: str, change: dict[str, Any]
) -> None:
    prompt = smaller(queued)
    prompt[node_called(prompt, node)]["inputs"].update(change)
    assert compare(small_plain_picture, picture(client, client.run(prompt))) is not None


def test_a_prompt_queued_again_comes_from_the_cache(client: ComfyClient, queued: Prompt) -> None:
    prompt = smaller(queued)
    first = client.run(prompt)
    second = client.run(prompt)
    report = node_called(prompt, REPORT)
    assert set(second.executed) <= {report}
    assert second.images() == first.images()
    assert second.outputs[report]["placement_report"]


def test_after_interrupts_in_every_kind_of_model_the_same_prompt_still_gives_the_same_picture(
    client: ComfyClient, queued: Prompt, small_plain_picture: bytes
) -> None:
    """One after the other: what ran before an interrupt is cached, so a wrong result of it would show at the end."""
    prompt = smaller(queued)
    titles = ("Prompt (CLIP-L)", "Prompt (T5)", "CLIPVisionEncode", "KSampler", "VAEDecode")
    left = {node_called(prompt, title) for title in titles}

    def interrupt(node_id: str, step: tuple[int, int] | None) -> None:
        if node_id in left:
            left.remove(node_id)
            client.interrupt()

    client.free()
    while left:
        with pytest.raises(Interrupted):
            client.run(prompt, interrupt)
    assert compare(small_plain_picture, picture(client, client.run(prompt))) is None
