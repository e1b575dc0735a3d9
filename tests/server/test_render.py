"""Both graphs draw the same picture, and the report tells what happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import node_called

from scripts.comfy_client import ComfyClient, Interrupted, Prompt, Result
from scripts.comfy_server import ComfyServer
from scripts.demo import compare, report_of
from scripts.demo import render as rendered

REPORT = "LayerwiseOffload_PlacementReport"


def picture(client: ComfyClient, result: Result) -> bytes:
    (image,) = result.images()
    return client.view(image)


@pytest.fixture(scope="session")
def plain_picture(server: ComfyServer, client: ComfyClient) -> Callable[[Prompt], bytes]:
    """Renders the plain graph once; every other test compares with it."""
    pictures: list[bytes] = []

    def get(plain: Prompt) -> bytes:
        if not pictures:
            pictures.append(rendered(server, client, plain, "the plain graph").picture)
        return pictures[0]

    return get


def test_the_pack_does_not_change_one_pixel(
    server: ComfyServer,
    client: ComfyClient,
    plain: Prompt,
    with_pack: Prompt,
    plain_picture: Callable[[Prompt], bytes],
) -> None:
    expected = plain_picture(plain)
    run = rendered(server, client, with_pack, "the graph with the pack")
    assert compare(expected, run.picture) is None


def test_the_report_names_every_component_and_says_layerwise_for_the_encoders(
    server: ComfyServer, client: ComfyClient, with_pack: Prompt
) -> None:
    text, rows = report_of(rendered(server, client, with_pack, "the graph with the pack"))
    components = components_of(rows)
    assert {"text_encoder", "text_encoder_2", "image_encoder", "vae", "transformer"} <= set(components)
    for name in ("text_encoder", "text_encoder_2", "image_encoder"):
        assert components[name]["asked"] == "layerwise"
        assert components[name]["applied"] == "layerwise"
        assert components[name]["why"]
        assert name in text
    assert "layerwise" in text


def components_of(rows: list[dict]) -> dict[str, dict]:
    """The report's rows by component name."""
    return {row["component"]: row for report in rows for row in report["components"]}


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
    client: ComfyClient,
    plain: Prompt,
    changed: Callable[..., Prompt],
    plain_picture: Callable[[Prompt], bytes],
    node: str,
    change: dict,
) -> None:
    other = picture(client, client.run(changed(node, **change)))
    assert compare(plain_picture(plain), other) is not None


def test_a_prompt_queued_again_comes_from_the_cache(client: ComfyClient, with_pack: Prompt) -> None:
    first = client.run(with_pack)
    second = client.run(with_pack)
    assert set(second.executed) <= {node_called(with_pack, REPORT)}
    assert second.seconds < 2
    assert second.images() == first.images()
    assert "placement_report" in second.outputs[node_called(with_pack, REPORT)]


@pytest.mark.parametrize(
    "victim", ["Prompt (CLIP-L)", "Prompt (T5)", "CLIPVisionEncode", "KSampler", "VAEDecode"]
)
def test_after_an_interrupt_the_same_prompt_still_gives_the_same_picture(
    client: ComfyClient,
    plain: Prompt,
    with_pack: Prompt,
    plain_picture: Callable[[Prompt], bytes],
    victim: str,
) -> None:
    expected = plain_picture(plain)
    client.free()
    stopped_at = node_called(with_pack, victim)

    def interrupt(node_id: str, step: tuple[int, int] | None) -> None:
        if node_id == stopped_at:
            client.interrupt()

    with pytest.raises(Interrupted):
        client.run(with_pack, interrupt)
    assert compare(expected, picture(client, client.run(with_pack))) is None
