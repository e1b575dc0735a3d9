"""The sockets of both Loaders, from which their schemas and whatever inserts them derive."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SOCKETS: Mapping[str, str] = MappingProxyType(
    {"model": "MODEL", "clip": "CLIP", "vae": "VAE", "clip_vision": "CLIP_VISION"}
)
"""Socket for what is placed → the type of what it takes, in order."""

OTHERS: Mapping[str, str] = MappingProxyType(
    {
        socket: socket.upper()
        for socket in (
            "control_net",
            "model_patch",
            "style_model",
            "audio_encoder",
            "upscale_model",
            "latent_upscale_model",
            "background_removal",
            "interp_model",
            "optical_flow",
            "da3_model",
            "moge_model",
            "face_detection_model",
            "gligen",
            "photomaker",
        )
    }
)
"""Those of the loader of other models. Workflows hold outputs by position, so that new ones come after the last output.

One socket a type, and not an input that grows: outputs cannot grow with it, ComfyUI 0.3.75 has none, and a type that a
version does not know does no harm.
"""
