"""What *Check this machine* has found, as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from .machine_check import Copies, MachineCheck
from .quantities import format_bytes


def machine_text(check: MachineCheck) -> str:
    """Return the text: what was measured, which claims hold, and what could not be measured."""
    blocks = (_machine(check), [*_speeds(check)], [*_verdicts(check)], check.notes)
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _machine(check: MachineCheck) -> list[str]:
    sizes = [f"memory {format_bytes(check.memory_bytes)}"]
    if check.device_bytes:
        sizes.insert(0, f"VRAM {format_bytes(check.device_bytes)}")
    versions = [f"torch {check.torch}", f"Python {check.python}", check.system]
    if check.comfyui:
        versions.insert(0, f"ComfyUI {check.comfyui}")
    return [" · ".join([f"Check of this machine: {check.device}", *sizes]), " · ".join(versions)]


def _speeds(check: MachineCheck) -> Iterator[str]:
    for copies, speed, kind in (
        (check.pinned_copies, check.link_pinned, "pinned memory"),
        (check.pageable_copies, check.link_pageable, "pageable memory"),
    ):
        if speed is not None:
            yield " · ".join([f"link from {kind}: {_rate(speed)}", *_sizes(copies)])
    if check.copy_latency is not None:
        yield f"each copy costs {check.copy_latency * 1e6:.0f} µs beside its bytes"
    for share, kind in ((check.overlap, "pinned memory"), (check.overlap_staged, "pageable memory")):
        if share is not None:
            yield f"a copy from {kind} beside computing of the same length: {share:.0%} of it hidden"
    if check.disk is not None:
        yield f"disk to memory: {_rate(check.disk)}"
    if check.page_cache is not None:
        yield f"a file that is in memory already to memory: {_rate(check.page_cache)}"
    if check.memory is not None:
        yield f"memory to memory: {_rate(check.memory)}"


def _sizes(copies: Copies) -> Iterator[str]:
    for size, seconds in copies[:-1]:
        yield f"copies of {format_bytes(size)}: {_rate(size / seconds)}"


def _verdicts(check: MachineCheck) -> Iterator[str]:
    for verdict in check.verdicts:
        yield " · ".join(["holds" if verdict.holds else "FAILS", verdict.claim, verdict.found])


def _rate(speed: float) -> str:
    return f"{speed / 1e9:.1f} GB/s" if speed >= 1e9 else f"{speed / 1e6:.0f} MB/s"
