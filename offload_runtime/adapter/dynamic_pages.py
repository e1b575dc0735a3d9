"""The pages of one model under ComfyUI's dynamic VRAM: which it needs, which are there, what a budget leaves.

A model's weights have addresses in a range of 32 MB pages, those that ComfyUI values most at the lowest ones.
ComfyUI faults pages in as operations run and copies what is on none through a buffer per stream. All that is
read and steered here is the range object that ComfyUI itself keeps on the model; whatever a version of its native
layer lacks is reported, not replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import comfy.model_management as mm
import torch
from torch import nn

from ..engine import tensor_bytes

PAGE = 32 << 20
"""Bytes of a page; the native layer evicts no less."""

_CHUNK = 16 << 20
"""Steps in which the buffer of a stream grows."""

_SMALL = 16 << 10
"""A module of no more bytes is always loaded."""

_REFUSALS = (AttributeError, RuntimeError)
"""What a call of a native layer raises that lacks the function, or whose function fails."""


def range_of(model: nn.Module, device: torch.device) -> Any | None:
    """Return the range of a model on a device, or None before its first load there."""
    return getattr(model, "dynamic_vbars", {}).get(device)


def needed_pages(model: nn.Module, pages: Any, left_out: Collection[nn.Module]) -> list[int]:
    """Return the numbers of the pages that a model's weights lie on, lowest first.

    Args:
        model: a model that was loaded once.
        pages: its range.
        left_out: modules whose weights are used where they are, on the host.
    """
    numbers: set[int] = set()
    for module in _paged_modules(model, pages, left_out):
        _, address, size = module._v  # type: ignore[misc]
        first = (address - pages.base_addr) // PAGE
        numbers.update(range(first, -(-(address + size - pages.base_addr) // PAGE)))
    return sorted(numbers)


def resident_bytes(pages: Any, needed: Collection[int]) -> int | None:
    """Return how many bytes of the needed pages are on the device, or None where the native layer does not say."""
    residency = _answer(pages, "get_residency")
    if residency is None:
        return None
    return PAGE * sum(1 for number in needed if number < len(residency) and residency[number] & 1)


def lacks_pages(model: nn.Module, pages: Any, left_out: Collection[nn.Module]) -> bool:
    """Tell whether a model needs pages that are not on the device; not where the native layer does not say."""
    needed = needed_pages(model, pages, left_out)
    there = resident_bytes(pages, needed)
    return there is not None and there < len(needed) * PAGE


def stray_pages(pages: Any, needed: Collection[int]) -> list[int]:
    """Return the numbers of the pages that are on the device although nothing on them is needed now, lowest first.

    A token table's are, when it was used there before it was left on the host.
    """
    residency, kept = _answer(pages, "get_residency") or (), set(needed)
    return [number for number, state in enumerate(residency) if state & 1 and number not in kept]


def drop_stray_pages(model: nn.Module, pages: Any, left_out: Collection[nn.Module]) -> None:
    """Let pages go that nothing is needed of; those above them go, too, and come back when they are used.

    Args:
        model: a loaded model.
        pages: its range.
        left_out: modules whose weights stay on the host.
    """
    stray = stray_pages(pages, needed_pages(model, pages, left_out))
    if stray and set_bar(pages, stray[0] * PAGE):
        set_bar(pages, len(pages.get_residency()) * PAGE)


def allowed_bytes(pages: Any, needed: Collection[int]) -> int | None:
    """Return how many bytes of the needed pages the bar allows on the device now; None where that is not said."""
    watermark = _answer(pages, "get_watermark")
    return None if watermark is None else PAGE * sum(1 for number in needed if number < watermark)


def set_bar(pages: Any, address: int) -> bool:
    """Let no page above an address be resident; tell whether the native layer did it."""
    try:
        pages.set_watermark(address)
    except _REFUSALS:
        return False
    return True


def watermark_for(model: nn.Module, pages: Any, budget: int, left_out: Collection[nn.Module]) -> int | None:
    """Return the address, in bytes, up to which pages may be resident so that a budget holds at every instant.

    A budget counts the pages, the small weights that ComfyUI always loads, and the buffers that the other weights
    pass through while they are used.

    Args:
        model: a loaded model.
        pages: its range.
        budget: bytes of device memory.
        left_out: modules whose weights stay on the host.

    Returns:
        The address, or None when all of it fits in the budget.
    """
    needed = needed_pages(model, pages, left_out)
    always = int(model.model_loaded_weight_memory)  # type: ignore[arg-type]
    if len(needed) * PAGE + always + _buffers(model, pages, left_out, streamed=False) <= budget:
        return None
    room = budget - always - _buffers(model, pages, left_out, streamed=True)
    count = max(0, room // PAGE)
    return needed[count] * PAGE if count < len(needed) else None


def least_bytes(model: nn.Module, left_out: Collection[nn.Module] = ()) -> int:
    """Return the device memory that a model takes when none of its pages may be there, before its first load.

    ComfyUI always loads small weights and whatever its operations do not cast, and the others pass through buffers.

    Args:
        model: the model.
        left_out: modules whose weights stay on the host.
    """
    always = largest = 0
    for module in model.modules():
        if module in left_out:
            continue
        own = {key: tensor_bytes(p) for key, p in module.named_parameters(recurse=False)}
        size = sum(own.values())
        cast = (
            sum(own.get(key, 0) for key in ("weight", "bias")) if hasattr(module, "comfy_cast_weights") else 0
        )
        if size <= _SMALL:
            cast = 0
        always, largest = always + size - cast, max(largest, cast)
    return always + max(1, int(mm.NUM_STREAMS)) * -(-largest // _CHUNK) * _CHUNK


def _answer(pages: Any, name: str) -> Any | None:
    try:
        return getattr(pages, name)()
    except _REFUSALS:
        return None


def _buffers(model: nn.Module, pages: Any, left_out: Collection[nn.Module], *, streamed: bool) -> int:
    """Return the bytes of the buffers that weights and their patches pass through, one for each stream."""
    largest = max((_passing(m, streamed) for m in _paged_modules(model, pages, left_out)), default=0)
    return max(1, int(mm.NUM_STREAMS)) * -(-largest // _CHUNK) * _CHUNK


def _passing(module: nn.Module, streamed: bool) -> int:
    """Return what of a module goes through a buffer: its weights, or only what cannot go straight to a page."""
    masters = list(module.parameters(recurse=False))
    held = sum(map(tensor_bytes, masters))
    cast = any(getattr(master, "_model_dtype", master.dtype) != master.dtype for master in masters)
    total = max(int(module._v[2]), held) if streamed else held * cast  # type: ignore[index]
    for name in ("weight", "bias"):
        patch = getattr(module, f"{name}_lowvram_function", None)
        total += int(patch.memory_required()) if patch is not None else 0
    return total


def _paged_modules(model: nn.Module, pages: Any, left_out: Collection[nn.Module]) -> Iterator[nn.Module]:
    for module in model.modules():
        allocation = getattr(module, "_v", None)
        if allocation is not None and allocation[0] is pages and module not in left_out:
            yield module


def whole_bytes(model: nn.Module, device: str) -> int | None:
    """Return the device memory that a model takes when all its pages are there, or None before its first load."""
    pages = range_of(model, torch.device(device))
    if pages is None:
        return None
    return len(needed_pages(model, pages, ())) * PAGE + int(model.model_loaded_weight_memory)  # type: ignore[arg-type]
