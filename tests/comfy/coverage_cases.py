"""Every family, and which of them ComfyUI itself does not let anybody offload."""

from __future__ import annotations

import inspect
import re

import coverage_diffusion
import coverage_encoders
import coverage_llms
import coverage_others
import coverage_vaes
import coverage_vision
from coverage_check import Case

CASES: list[Case] = [
    *coverage_encoders.CASES,
    *coverage_llms.CASES,
    *coverage_vision.CASES,
    *coverage_vaes.CASES,
    *coverage_diffusion.CASES,
    *coverage_others.CASES,
]

KEPT_WHOLE = {
    "Stable Audio (Oobleck)": "comfy.ldm.audio.autoencoder:AudioOobleckVAE",
    "Stable Audio 3": "comfy.ldm.audio.vae_sa3:SA3AudioVAE",
    "ACE-Step DCAE": "comfy.ldm.ace.vae.music_dcae_pipeline:MusicDCAE",
    "LTX audio": "comfy.ldm.lightricks.vae.audio_vae:AudioVAE",
    "LTX 2.4 diffusion decoder": "comfy.ldm.lightricks.vae.na_diffusion_decoder:CausalDiffusionVAE",
    "SeedVR2": "comfy.ldm.seedvr.vae:VideoAutoencoderKLWrapper",
    "MiniMax Music 3 DAV": "comfy.ldm.minimax_music.dav:MiniMaxMusic3DAV",
}
"""VAEs that `comfy.sd.VAE` marks with `disable_offload`: name → class."""


def kept_whole_by_comfyui() -> set[str]:
    """Return the classes whose branch in `comfy.sd.VAE` says `disable_offload`, read from its source."""
    import comfy.sd

    branches = re.split(r"\n {12}(?:el)?if ", inspect.getsource(comfy.sd.VAE.__init__))
    marked = [branch for branch in branches if "self.disable_offload = True" in branch]
    return {name for branch in marked for name in re.findall(r"first_stage_model = [\w.]*?(\w+)\(", branch)}
