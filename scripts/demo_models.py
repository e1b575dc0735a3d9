"""Write the demo models: real geometry, seeded random weights, safetensors. `python -m scripts.demo_models`.

Every tensor has the dtype that ComfyUI keeps in memory on a CPU (float16 in encoders, float32 elsewhere), so
that the bytes in the file are the bytes in memory; but for one encoder in fp8, as people have them.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from . import demo_geometry as geometry
from . import demo_geometry_video as video
from .places import demo_models, shown
from .problem import Problem, run

RECIPE_VERSION = 1

FP8 = "float8_e4m3fn"


@dataclass(frozen=True)
class Model:
    """One file, named by its ComfyUI models folder and file name."""

    file: str
    tensors: Callable[[], geometry.Tensors]
    dtype: str
    config: dict[str, Any] = field(default_factory=dict)  # goes into the file's metadata

    def recipe(self) -> str:
        """A hash of everything that decides the file's bytes."""
        parts: list[Any] = [RECIPE_VERSION, self.file, self.dtype]
        parts += [self.config] if self.config else []
        parts += [(name, astuple(weight)) for name, weight in self.tensors().items()]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def metadata(self) -> dict[str, str]:
        """What the file's header says: our recipe, and the model's configuration where ComfyUI reads one."""
        configuration = {"config": json.dumps(self.config)} if self.config else {}
        return {"layerwise_demo_recipe": self.recipe(), **configuration}


MODELS = (
    Model("text_encoders/demo_clip_l.safetensors", geometry.clip_text_l, "float16"),
    Model("text_encoders/demo_t5_base.safetensors", geometry.t5_base, "float16"),
    Model("text_encoders/demo_clip_h_fp8.safetensors", geometry.clip_text_h, FP8),
    Model("clip_vision/demo_clip_vit_l.safetensors", geometry.clip_vision_l, "float16"),
    Model("style_models/demo_style_adapter.safetensors", geometry.style_adapter, "float32"),
    Model("diffusion_models/demo_sd3_tiny.safetensors", geometry.sd3_tiny, "float32"),
    Model("controlnet/demo_sd3_control_tiny.safetensors", geometry.sd3_control_tiny, "float32"),
    Model("vae/demo_vae_16ch.safetensors", geometry.vae_16_channels, "float32"),
    Model("checkpoints/demo_ltxv_tiny.safetensors", video.ltxv_tiny, "float32", video.CONFIG),
)


def ensure_models(folder: Path) -> None:
    """Write the models that are missing or made by another recipe; leave the others alone."""
    missing = [model for model in MODELS if _recorded_recipe(folder / model.file) != model.recipe()]
    if missing:
        print(
            f"… writing {len(missing)} demo models with random weights to {shown(folder)} (under a minute)",
            flush=True,
        )
    for model in missing:
        file = folder / model.file
        try:
            write(model, file)
        except OSError as error:
            raise Problem(
                f"writing the demo model {shown(file)} failed ({error.strerror or error}); "
                "free some space, or set LAYERWISE_CACHE to a folder on another disk."
            ) from error
        print(f"  {file.name} ({file.stat().st_size / 1e6:.0f} MB)", flush=True)


def write(model: Model, file: Path) -> None:
    """Draw the weights and write the file under a temporary name first, so that it is whole or absent."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    drawn = (
        (name, _draw(f"{model.file}:{name}", weight), weight) for name, weight in model.tensors().items()
    )
    try:
        if model.dtype == FP8:
            _save_fp8({name: values for name, values, _ in drawn}, partial, model.metadata())
        else:
            tensors = {name: values.astype(weight.dtype or model.dtype) for name, values, weight in drawn}
            save_file(tensors, partial, metadata=model.metadata())
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def _save_fp8(values: dict[str, np.ndarray], file: Path, metadata: dict[str, str]) -> None:
    """Write in a type that NumPy does not have; torch is only imported for it."""
    import torch
    from safetensors.torch import save_file as save

    tensors = {name: torch.from_numpy(array).to(torch.float8_e4m3fn) for name, array in values.items()}
    save(tensors, file, metadata=metadata)


def _draw(seed_text: str, weight: geometry.Weight) -> np.ndarray:
    """The tensor's values, seeded by its own name so that no tensor depends on the others."""
    if weight.std == 0.0:
        return np.full(weight.shape, weight.mean, dtype=np.float32)
    seed = int.from_bytes(hashlib.sha256(seed_text.encode()).digest()[:8], "big")
    values = np.random.default_rng(seed).standard_normal(weight.shape, dtype=np.float32)
    values *= weight.std
    values += weight.mean
    return values


def _recorded_recipe(file: Path) -> str | None:
    """The recipe hash in a safetensors header, or None for a file that is absent, cut short or not ours."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        recipe = header.pop("__metadata__", {}).get("layerwise_demo_recipe")
        end = 8 + length + max(entry["data_offsets"][1] for entry in header.values())
    except (OSError, ValueError, struct.error):
        return None
    return recipe if file.stat().st_size == end else None


if __name__ == "__main__":
    run(lambda: ensure_models(demo_models()))
