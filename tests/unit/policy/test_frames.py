"""What a prompt says about the use of a VAE."""

from __future__ import annotations

from typing import Any

import pytest

from offload_runtime.policy import VaeUse, vae_use

LOADER = {"class_type": "LayerwiseOffload_Loader", "inputs": {"vae": ["file", 0]}}
SIZE = {"width": 832, "height": 480}


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def decoded(latent: dict[str, Any], vae: tuple[str, int] = ("ours", 2), **more: Any) -> dict[str, Any]:
    """A prompt that samples a latent and decodes it with our VAE."""
    return {
        "file": node("VAELoader", vae_name="wan_2.1_vae.safetensors"),
        "ours": LOADER,
        "latent": latent,
        "sampler": node("KSampler", latent_image=["latent", 0], seed=3),
        "decode": node("VAEDecode", samples=["sampler", 0], vae=list(vae)),
        "save": node("CreateVideo", images=["decode", 0]),
        **more,
    }


@pytest.mark.parametrize(
    ("latent", "expected"),
    [
        (node("EmptySD3LatentImage", **SIZE, batch_size=2), VaeUse(None, False)),
        (node("EmptyHunyuanLatentVideo", **SIZE, length=1), VaeUse(1, False)),
        (node("EmptyHunyuanLatentVideo", **SIZE, length=81), VaeUse(81, False)),
        (node("SVD_img2vid_Conditioning", **SIZE, video_frames=14), VaeUse(14, False)),
        (node("EmptyHunyuanLatentVideo", **SIZE, length=["number", 0]), VaeUse(49, False)),
        (node("EmptyHunyuanLatentVideo", **SIZE, length=["sum", 0]), VaeUse(None, True)),
        (node("VAEEncode", pixels=["photo", 0], vae=["ours", 2]), VaeUse(None, False)),
        (node("VAEEncode", pixels=["film", 0], vae=["ours", 2]), VaeUse(None, True)),
        (node("VAEEncode", pixels=["film", 0], vae=["another", 0]), VaeUse(None, True)),
        (node("TextSlice", text="a cat", length=30), VaeUse(None, False)),
        (node("WanImageToVideo", **SIZE, length=33, vae=["ours", 2], image=["photo", 0]), VaeUse(33, False)),
        (node("FramesWithoutNumber", **SIZE, length="all"), VaeUse(None, False)),
    ],
    ids=lambda value: str(value.get("class_type")) if isinstance(value, dict) else None,
)
def test_the_nodes_in_front_of_a_decode_tell_what_it_decodes(
    latent: dict[str, Any], expected: VaeUse
) -> None:
    prompt = decoded(
        latent,
        number=node("PrimitiveInt", value=49),
        sum=node("MathExpression", a=["number", 0]),
        photo=node("LoadImage", image="cat.png"),
        film=node("GetVideoComponents", video=["file of it", 0]),
    )
    assert vae_use(prompt, "ours", 2) == expected


def test_what_another_vae_makes_of_the_picture_does_not_count() -> None:
    prompt = decoded(
        node("EmptySD3LatentImage", **SIZE),
        another=node("VAELoader", vae_name="wan_2.1_vae.safetensors"),
        film=node("WanImageToVideo", **SIZE, length=81, start_image=["decode", 0], vae=["another", 0]),
        film_decode=node("VAEDecode", samples=["film", 2], vae=["another", 0]),
    )
    assert vae_use(prompt, "ours", 2) == VaeUse(None, False)
    assert vae_use(prompt, "another", 0) == VaeUse(81, False)


def test_one_frame_beside_a_film_says_nothing_about_the_film() -> None:
    prompt = decoded(
        node("EmptyHunyuanLatentVideo", **SIZE, length=1),
        film=node("LoadVideo", file="cat.mp4"),
        encode=node("VAEEncode", pixels=["film", 0], vae=["ours", 2]),
    )
    assert vae_use(prompt, "ours", 2) == VaeUse(None, True)


@pytest.mark.parametrize(
    ("source", "between"),
    [
        (("second", 2), node("LayerwiseOffload_Loader", vae=["ours", 2], clip=["file", 1])),
        (("second", 0), node("SelectVAEDevice", vae=["ours", 2], device="cpu")),
    ],
)
def test_a_vae_is_followed_through_nodes_that_hand_it_on(
    source: tuple[str, int], between: dict[str, Any]
) -> None:
    latent = node("EmptyHunyuanLatentVideo", **SIZE, length=81)
    assert vae_use(decoded(latent, vae=source, second=between), "ours", 2) == VaeUse(81, False)


@pytest.mark.parametrize("prompt", [{}, {"ours": LOADER}, decoded(node("Latent"), vae=("file", 0))])
def test_of_a_vae_that_nobody_uses_nothing_is_known(prompt: dict[str, Any]) -> None:
    assert vae_use(prompt, "ours", 2) == VaeUse(None, None)


def test_a_prompt_that_goes_round_is_walked_once() -> None:
    prompt = {
        "ours": LOADER,
        "a": node("Pass", vae=["b", 0]),
        "b": node("Pass", vae=["a", 0], other=["ours", 2]),
    }
    assert vae_use(prompt, "ours", 2) == VaeUse(None, False)
