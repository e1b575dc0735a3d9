"""How to build a tiny diffusion model out of ComfyUI's real class."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from coverage_check import Case, Shrink, all_of
from torch import nn

Sizes = dict[str, Any]


def dit(
    family: str,
    needs: str,
    run: Callable[[Any], Any],
    tiny: Sizes,
    real: Sizes | None = None,
    params: str | None = None,
    shrink: Shrink = list,
    **more: Any,
) -> Case:
    """Describe a diffusion model by the arguments that make it tiny, and those of a released one.

    Args:
        run: uses it as `BaseModel.apply_model` does.
        params: dataclass of its arguments; a version may know fewer of them.
    """
    module, name = needs.split(":")

    def build(device: str, sizes: Sizes) -> nn.Module:
        import comfy.ops

        found = importlib.import_module(module)
        known = getattr(found, params).__dataclass_fields__ if params else sizes
        root = nn.Module()  # as in `BaseModel`
        root.diffusion_model = getattr(found, name)(
            **{key: value for key, value in sizes.items() if key in known},
            dtype=torch.float32,
            device=device,
            operations=comfy.ops.manual_cast,
        )
        return root

    def make() -> nn.Module:
        with all_of(shrink()):
            return build("cpu", tiny)

    make_real = None if real is None else lambda: build("meta", real)
    return Case(
        "diffusion model",
        family,
        needs,
        make,
        lambda root: run(root.diffusion_model),
        make_real,
        **more,
    )
