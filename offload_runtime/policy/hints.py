"""What people mean who write the words of other programs: “did you mean …”, where spelling alone would mislead.

`gpu` is one letter away from `cpu`, and the opposite of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from .components import COMPONENTS, OTHERS, SELECTORS

_RESIDENT = "did you mean resident?"
_STREAMED = "did you mean layerwise?"
_WHOLE = "did you mean offload?"
_IN_MEMORY = "did you mean offload or cpu? The one waits in memory between its uses, the other computes there"
_FROM_FILE = f"{_STREAMED} With host: mapped its layers are read from the model file"
_NOTHING = "did you mean auto? What nobody sets is decided for you"
_NO_LIMIT = "did you mean auto? Without a budget, the weights may take what the card has to give"
_ON_CPU = "to compute on the CPU, write placement: cpu"


def _waiting(tier: str) -> dict[str, str]:
    return {tier: f"{_STREAMED} Where its layers wait is another setting: host: {tier}"}


def _words(hint: str, words: str) -> dict[str, str]:
    return dict.fromkeys(words.split(), hint)


VALUE_WORDS: Mapping[str, Mapping[str, str]] = {
    "placement": {
        **_words(
            _RESIDENT,
            "gpu cuda vram device card xpu mps npu rocm hip gpu_only highvram keep loaded full whole",
        ),
        **_words(_IN_MEMORY, "ram memory host dram sysmem system_ram system_memory"),
        **_words(_FROM_FILE, "disk file ssd nvme mmap"),
        **_waiting("mapped"),
        **_waiting("pinned"),
        **_waiting("staged"),
        **_words(
            _STREAMED,
            "sequential sequential_offload sequential_cpu_offload stream streaming streamed layer layers block blocks "
            "block_swap blockswap swap group_offload group_offloading lowvram partial partially",
        ),
        **_words(
            _WHOLE,
            "model_cpu_offload model_offload cpu_offload component_offload snapshot_offload unload unloaded",
        ),
        **_words(_NOTHING, "none off no false null default unset normal normalvram balanced comfyui"),
    },
    "mode": {
        **_words(
            "did you mean speed?", "fast faster fastest performance quick highvram gpu gpu_only vram max"
        ),
        **_words(
            "did you mean memory?", "low lowvram novram save saving economy small ram low_memory low_vram"
        ),
        **_words("did you mean manual?", "off none no false disabled disable custom explicit"),
        **_words(_NOTHING, "default balanced normal normalvram automatic on true yes"),
    },
    "host tier": {
        **_words("did you mean pinned?", "pin page_locked pagelocked locked"),
        **_words("did you mean staged?", "ram cpu memory pageable unpinned host paged"),
        **_words("did you mean mapped?", "disk file mmap ssd nvme safetensors"),
        **_words(_NOTHING, "none default off no false"),
    },
    "switch": {
        **_words("did you mean on?", "1 enabled enable strict y"),
        **_words("did you mean off?", "0 disabled disable none n"),
    },
    "device": {
        **_words("did you mean gpu:0?", "gpu cuda xpu mps npu rocm hip"),
        **_words(_ON_CPU, "cpu"),
        **_words(_NOTHING, "none default"),
    },
    "budget": {
        **_words(_NO_LIMIT, "none unlimited unset off no default infinite inf max null"),
        **_words("did you mean 100%?", "all full whole everything"),
        **_words("did you mean 50%?", "half"),
    },
}
"""What a value is called → what people write for it → the hint."""

COMPONENT_WORDS: Mapping[str, str] = {
    **_words(
        "text_encoder",
        "clip clips t5 t5xxl umt5 clip_l clip_g clip_model text text_enc te text_model text_encoders prompt "
        "llm qwen gemma llama conditioner cond_stage_model",
    ),
    **_words(
        "image_encoder",
        "clip_vision clipvision clip_vision_model vision vision_encoder vision_model siglip dinov2 image_encoders",
    ),
    **_words(
        "diffusion_model",
        "unet model diffusion diffusion_models diffuser mmdit denoiser unet_model base_model "
        "video_dit audio_dit unconditional_transformer transformers",
    ),
    **_words(
        "vae", "autoencoder first_stage_model first_stage decoder vae_decoder vae_encoder taesd vaes ae kl"
    ),
    **_words("audio_vae", "audio audio_decoder"),
    **_words("control_net", "controlnet controlnets control_nets control t2i_adapter"),
    **_words("upscale_model", "upscaler upscale upscale_models esrgan"),
    **_words("latent_upscale_model", "latent_upscaler latent_upscale"),
    **_words("style_model", "redux style"),
    **_words("audio_encoder", "wav2vec2 whisper audio_encoders"),
    **_words("background_removal", "birefnet rembg"),
    **_words("interp_model", "rife film frame_interpolation"),
    **_words("video_vae", "video video_decoder"),
    **_words("all", "checkpoint checkpoints ckpt everything any every * models components"),
    **_words("default", "encoders auxiliary"),
}
"""ComfyUI's own words, and those of others, for what a policy names → the selector."""

_NOT_PLACED = _words(
    "it is part of another model, and has no placement of its own",
    "lora loras ipadapter ip_adapter embedding embeddings hypernetwork",
)

_NUMBERED = re.compile(r"(.*[a-z])_?0*([1-9][0-9]{0,2})")
_SPACES = re.compile(r"[\s-]+")
_LONGEST = 80


def value_hint(what: str, text: str) -> str:
    """Return what a person means by a word that a setting does not have, or "" when nobody can tell.

    Args:
        what: what a value of the setting is called: “placement”, “switch”.
        text: what they wrote.
    """
    word = _plain(text)
    words = VALUE_WORDS.get(what, {})
    device, colon, number = word.partition(":")
    return words.get(device if colon and number.isdecimal() else word, "")


def component_hint(text: str) -> str:
    """Return what a person means by a name that no component or group has."""
    name = _plain(text)
    if name in _NOT_PLACED:
        return _NOT_PLACED[name]
    if name in COMPONENT_WORDS:
        return f"did you mean {COMPONENT_WORDS[name]}?"
    numbered = _NUMBERED.fullmatch(name)
    if numbered is not None:
        base = COMPONENT_WORDS.get(numbered[1], numbered[1])
        if base in COMPONENTS:
            return _numbered_hint(base, int(numbered[2]), known=base == numbered[1])
    return suggest(name, SELECTORS, [word for word in SELECTORS if word not in OTHERS])


def suggest(name: str, valid: Iterable[str], listed: Iterable[str] = ()) -> str:
    """Return “did you mean …” when something is near, else the list of what is possible.

    Args:
        name: what was written.
        valid: what could have been meant.
        listed: what of that is listed, where not all of it is.
    """
    valid = list(valid)
    near = difflib.get_close_matches(name.lower()[:_LONGEST], valid, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"possible: {', '.join(listed or valid)}"


def _numbered_hint(base: str, number: int, *, known: bool) -> str:
    if number > 1:
        return f"did you mean {base}_{number}?"
    return f"the first one is {base}, the second {base}_2" if known else f"did you mean {base}?"


def _plain(text: str) -> str:
    return _SPACES.sub("_", text.strip().lower()[:_LONGEST])
