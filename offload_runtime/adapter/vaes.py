"""What a VAE is for, and so its component name: `audio_vae`, `vae` or `video_vae`.

The evidence, the strongest first:

1. The object itself. Sound has two channels or a latent in one dimension, and its classes say audio; ComfyUI
   marks a VAE with a frame axis that is not for video (`not_video`); a latent without such an axis is a picture,
   or a shape.
2. The number of frames that the prompt names.
3. The number of frames in the last use. It is noted whenever ComfyUI sizes the memory of a decode or an encode.
4. The class: only a few VAEs with a frame axis are used by image models at all, first of all that of Wan 2.1.
5. The diffusion model beside it, if that is one of Wan.
6. Whether anything else in the prompt speaks of video.

Who knows nothing calls it `video_vae`: then more memory is kept free, and it is not streamed.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from ..policy import VaeUse
from .out_of_memory import room_for
from .record import record_of

_SHARED = (("WanVAE", 16), ("TAEHV", 16), ("VideoAutoencoderKLWrapper", 16))
"""Classes that decode both images and video, and their latent channels: Wan 2.1, its small stand-in, SeedVR2."""


def vae_name(vae: Any, use: VaeUse, diffusion_model: Any = None) -> str:
    """Name a VAE by what it is for.

    Args:
        vae: the VAE.
        use: what the prompt says about it.
        diffusion_model: the patcher of the diffusion model that came with it, if one did.
    """
    if _is_audio(vae):
        return "audio_vae"
    if getattr(vae, "latent_dim", None) != 3 or getattr(vae, "not_video", False):
        return "vae"
    frames = use.frames or _frames_seen(vae.patcher.model)
    if frames is not None:
        return "video_vae" if frames > 1 else "vae"
    video = not _is_shared(vae) or _is_wan(diffusion_model) or use.video is not False
    return "video_vae" if video else "vae"


def watch_frames(vae: Any) -> None:
    """Let our copy of a VAE note how many frames it is given, and what memory that takes; called before all else."""
    for kind in ("decode", "encode"):
        name = f"memory_used_{kind}"
        estimate = getattr(vae, name, None)
        if estimate is not None and not isinstance(estimate, _Noting):
            setattr(vae, name, _Noting(estimate, vae.patcher.model, kind))


class _Noting:
    """ComfyUI's estimate of what a decode or an encode needs, which is told the shape of what comes."""

    def __init__(self, estimate: Any, model: nn.Module, kind: str) -> None:
        self._estimate, self._model, self._kind = estimate, weakref.ref(model), kind

    def __call__(self, shape: Any, *args: Any, **more: Any) -> Any:
        model, asked = self._model(), self._estimate(shape, *args, **more)
        if model is not None:
            record_of(model).note_demand(asked, shape, self._kind)
            asked += room_for(model)
            if len(shape) == 5:
                record_of(model).frames[self._kind] = shape[2]
        return asked


def _frames_seen(model: nn.Module) -> int | None:
    """Return the frames of the last decode; of the last encode, which may be of one frame of many, before that."""
    seen = record_of(model).frames
    return seen.get("decode", seen.get("encode"))


def _is_audio(vae: Any) -> bool:
    classes = {type(vae), type(vae.patcher.model)}
    if any("audio" in f"{cls.__module__}.{cls.__name__}".lower() for cls in classes):
        return True
    channels = getattr(vae, "output_channels", None)
    return (
        channels == 2
        or getattr(vae, "extra_1d_channel", None) is not None
        or (getattr(vae, "latent_dim", None) == 1 and channels != 3)  # a shape has the three of a picture
    )


def _is_shared(vae: Any) -> bool:
    return (type(vae.patcher.model).__name__, getattr(vae, "latent_channels", None)) in _SHARED


def _is_wan(diffusion_model: Any) -> bool:
    return type(getattr(diffusion_model, "model", None)).__name__.startswith("WAN")
