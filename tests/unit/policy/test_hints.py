"""What a person is told who uses words of other programs, or of ComfyUI itself."""

from __future__ import annotations

import re

import pytest

from offload_runtime.errors import PolicyError
from offload_runtime.policy import SELECTORS, Setting, is_set, parse_selectors, parse_value
from offload_runtime.policy.hints import COMPONENT_WORDS, VALUE_WORDS


def refusal(setting: Setting, text: str) -> str:
    with pytest.raises(PolicyError) as error:
        parse_value(setting, text, "here")
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("gpu", "did you mean resident?"),
        ("GPU", "did you mean resident?"),
        ("cuda", "did you mean resident?"),
        ("cuda:0", "did you mean resident?"),
        ("gpu:1", "did you mean resident?"),
        ("vram", "did you mean resident?"),
        ("ram", "did you mean offload or cpu?"),
        ("disk", "did you mean layerwise?"),
        ("none", "did you mean auto?"),
        ("off", "did you mean auto?"),
        ("sequential", "did you mean layerwise?"),
        ("stream", "did you mean layerwise?"),
        ("block-swap", "did you mean layerwise?"),
        ("Sequential CPU Offload", "did you mean layerwise?"),
        ("model_cpu_offload", "did you mean offload?"),
        ("layer", "did you mean layerwise?"),
        ("residnt", "did you mean resident?"),
        ("pinned", "did you mean layerwise?"),
    ],
)
def test_a_placement_in_other_words_is_understood(text: str, hint: str) -> None:
    said = refusal(Setting.PLACEMENT, text)
    assert said.startswith(f"here: “{text}” is not a placement; {hint}")


def test_what_belongs_to_another_setting_is_sent_there() -> None:
    assert "host: mapped" in refusal(Setting.PLACEMENT, "disk")
    assert "host: pinned" in refusal(Setting.PLACEMENT, "pinned")
    assert "placement: cpu" in refusal(Setting.DEVICE, "cpu")
    assert "placement: cpu" in refusal(Setting.DEVICE, "cpu:0")


@pytest.mark.parametrize(
    ("setting", "text", "hint"),
    [
        (Setting.MODE, "fast", "did you mean speed?"),
        (Setting.MODE, "lowvram", "did you mean memory?"),
        (Setting.MODE, "off", "did you mean manual?"),
        (Setting.MODE, "balanced", "did you mean auto?"),
        (Setting.HOST, "disk", "did you mean mapped?"),
        (Setting.HOST, "mmap", "did you mean mapped?"),
        (Setting.HOST, "ram", "did you mean staged?"),
        (Setting.HOST, "page-locked", "did you mean pinned?"),
        (Setting.STRICT, "1", "did you mean on?"),
        (Setting.STRICT, "disabled", "did you mean off?"),
        (Setting.DEVICE, "gpu", "did you mean gpu:0?"),
        (Setting.DEVICE, "cuda", "did you mean gpu:0?"),
        (Setting.BUDGET, "none", "did you mean auto?"),
        (Setting.BUDGET, "unlimited", "did you mean auto?"),
        (Setting.TOTAL_BUDGET, "half", "did you mean 50%?"),
    ],
)
def test_other_settings_understand_other_words_too(setting: Setting, text: str, hint: str) -> None:
    assert hint in refusal(setting, text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("clip", "did you mean text_encoder?"),
        ("CLIP", "did you mean text_encoder?"),
        ("t5", "did you mean text_encoder?"),
        ("t5xxl", "did you mean text_encoder?"),
        ("clip_l", "did you mean text_encoder?"),
        ("clip2", "did you mean text_encoder_2?"),
        ("clip_2", "did you mean text_encoder_2?"),
        ("clip_1", "did you mean text_encoder?"),
        ("unet", "did you mean diffusion_model?"),
        ("model", "did you mean diffusion_model?"),
        ("denoiser", "did you mean diffusion_model?"),
        ("clip_vision", "did you mean image_encoder?"),
        ("clip-vision", "did you mean image_encoder?"),
        ("clip vision", "did you mean image_encoder?"),
        ("first_stage_model", "did you mean vae?"),
        ("checkpoint", "did you mean all?"),
        ("video_dit", "did you mean diffusion_model?"),
        ("text_encodr", "did you mean text_encoder"),
        ("x" * 10_000, "possible: diffusion_model"),
        ("controlnet", "did you mean control_net?"),
        ("upscaler", "did you mean upscale_model?"),
    ],
)
def test_comfyui_s_words_for_components_are_understood(text: str, hint: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_selectors(text)
    assert hint in str(error.value)


@pytest.mark.parametrize("text", ["lora", "ip_adapter", "embeddings"])
def test_what_has_no_placement_of_its_own_is_said(text: str) -> None:
    with pytest.raises(
        PolicyError, match=f"there is no component or group “{text}”; .*no placement of its own"
    ):
        parse_selectors(text)


@pytest.mark.parametrize("text", ["text_encoder_1", "text-encoder-1", "vae_1", "audio_vae_1"])
def test_the_first_component_has_no_number(text: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_selectors(text)
    first = text.replace("-", "_")[:-2]
    assert f"there is no component or group “{text}”; the first one is {first}, the second {first}_2" in str(
        error.value
    )


def test_every_word_that_is_offered_is_one_that_is_read() -> None:
    """A hint for a word that is right already would never be shown, and one for no word at all helps nobody."""
    settings = {setting.row.kind.what: setting for setting in Setting}
    for key, words in VALUE_WORDS.items():
        for word, hint in words.items():
            assert hint in refusal(settings[key], word)
            offered = re.findall(r"did you mean (\S+?)(?: or (\S+?))?\?", hint)
            for choice in filter(None, (word for pair in offered for word in pair)):
                assert not is_set(choice) or parse_value(settings[key], choice, "here") is not None
    for word, meant in COMPONENT_WORDS.items():
        assert word not in SELECTORS
        assert meant in SELECTORS
