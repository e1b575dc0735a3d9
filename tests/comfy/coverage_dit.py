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
    real: Sizes,
    params: str | None = None,
    shrink: Shrink = list,
    **more: Any,
) -> Case:
    """Describe a diffusion model by the arguments that make it tiny, and those of a released one.

    Args:
        run: uses it as `BaseModel.apply_model` does.
        params: dataclass of its arguments; a version may know fewer of them.
    """

    def make() -> nn.Module:
        with all_of(shrink()):
            return make_base_model(needs, "cpu", tiny, params)

    return Case(
        kind="diffusion model",
        family=family,
        needs=needs,
        make=make,
        run=lambda root: run(root.diffusion_model),
        real=lambda: make_base_model(needs, "meta", real, params),
        **more,
    )


def make_base_model(needs: str, device: str, sizes: Sizes, params: str | None) -> nn.Module:
    """Return a module that holds a diffusion model as `BaseModel` does."""
    import comfy.ops

    module, name = needs.split(":")
    found = importlib.import_module(module)
    known = getattr(found, params).__dataclass_fields__ if params else sizes
    root = nn.Module()
    root.diffusion_model = getattr(found, name)(
        **{key: value for key, value in sizes.items() if key in known},
        dtype=torch.float32,
        device=device,
        operations=comfy.ops.manual_cast,
    )
    return root
