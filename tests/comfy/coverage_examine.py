"""Examine a family, and put the finding into a row of the coverage table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from coverage_cases import CASES, KEPT_WHOLE, kept_whole_by_comfyui
from coverage_check import (
    Case,
    attributes,
    build,
    faults_of_structure,
    run_seeded,
    run_streamed,
    share_in_layers,
)
from coverage_table import Row
from torch import nn

from offload_runtime.adapter.structure import find_stacks, why_left_alone
from offload_runtime.engine import Stack
from offload_runtime.engine.stacks import stack_layers


@dataclass
class Finding:
    """What examining a family has shown."""

    row: Row
    faults: list[str] = field(default_factory=list)


@cache
def examine(case: Case) -> Finding:
    """Build a family, use it resident and streamed, and tell what is wrong with it."""
    model = build(case)
    stacks = find_stacks(model)
    if not stacks:
        return _left_alone(case, model)
    plain = run_seeded(case, model)
    before, ids = attributes(model), [id(p) for p in model.parameters()]
    results, order = run_streamed(case, model, stacks)
    faults = faults_of_structure(model, stacks) + _idle(case, stacks, order) + _why_it_shows_nothing(plain)
    if case.left_alone:
        faults.append(f"it should be left alone: {case.left_alone}")
    for use, result in enumerate(results, 1):
        if not _equal(plain, result):
            faults.append(f"use {use} streamed differs from resident")
    split, _ = run_streamed(case, model, stacks, budget=1)
    if all(_equal(plain, result) for result in split) == case.reads_past:
        faults.append(f"split into operations it {'equals' if case.reads_past else 'differs from'} resident")
    if attributes(model) != before or [id(p) for p in model.parameters()] != ids:
        faults.append("streaming leaves something behind")
    if not _equal(plain, run_seeded(case, model)):
        faults.append("resident differs after streaming")
    return Finding(_row(case, model, stacks, describe_order(stacks, order)), faults)


def _why_it_shows_nothing(plain: Sequence[torch.Tensor]) -> list[str]:
    if not all(torch.isfinite(tensor).all() for tensor in plain if tensor.is_floating_point()):
        return ["its plain result is not finite, so it shows nothing"]
    if not any(tensor.numel() > 1 and tensor.float().std() > 0 for tensor in plain):
        return ["its plain result is constant, so it shows nothing"]
    return []


def _left_alone(case: Case, model: nn.Module) -> Finding:
    reason = why_left_alone(model) or ""
    expected = case.left_alone
    faults = [] if expected and expected in reason else [f"left alone because {reason}, not “{expected}”"]
    row = Row(case.kind, case.family, _class_of(model), "–", "–", "–", f"left alone: {reason}")
    return Finding(row, faults)


def _idle(case: Case, stacks: Sequence[Stack], order: Sequence[int]) -> list[str]:
    called = set(order)
    layers = list(stack_layers(stacks))
    idle = [layer.name for index, layer in enumerate(layers) if index not in called]
    excused = {name for name in idle if any(name.startswith(prefix) for prefix in case.idle)}
    stale = [prefix for prefix in case.idle if not any(name.startswith(prefix) for name in excused)]
    return [f"{name} is never called" for name in idle if name not in excused] + [
        f"{prefix} is called after all" for prefix in stale
    ]


def _row(case: Case, model: nn.Module, stacks: Sequence[Stack], order: str) -> Row:
    shown = model
    if case.real is not None:
        shown = case.real()
        stacks = find_stacks(shown)
    layers = ", ".join(f"{_short(stack.name)} ({len(stack.layers)})" for stack in stacks)
    share = f"{share_in_layers(shown, stacks):.0%}"
    notes = [case.note, *(f"{_short(prefix)}: {why}" for prefix, why in case.idle.items())]
    return Row(
        case.kind,
        case.family,
        _class_of(model),
        layers,
        share,
        order,
        "; ".join(filter(None, notes)),
    )


def _class_of(model: nn.Module) -> str:
    return type(getattr(model, "diffusion_model", model)).__name__.rstrip("_")


def _short(name: str) -> str:
    return name.removeprefix("diffusion_model.")


def describe_order(stacks: Sequence[Stack], order: Sequence[int]) -> str:
    """Say in which order layers ran, against the order in which they are registered; idle stacks have a note."""
    start, said = 0, {}
    for stack in stacks:
        indices = range(start, start + len(stack.layers))
        ran = [i - start for i in order if i in indices]
        if ran:
            said[_short(stack.name)] = _describe(stack, ran)
        start += len(stack.layers)
    words = list(said.values())
    most = max(dict.fromkeys(words), key=words.count)
    others = [f"{name} {how}" for name, how in said.items() if how != most]
    return "; ".join(filter(None, (most, ", ".join(others))))


def _describe(stack: Stack, ran: Sequence[int]) -> str:
    first = list(dict.fromkeys(ran))
    groups = [stack.layers[i].name.removeprefix(f"{stack.name}.").split(".")[0] for i in first]
    if first == sorted(first):
        how = "in order"
    elif list(dict.fromkeys(groups)) == sorted(set(groups), reverse=True):
        how = "in reverse"
    else:
        how = "in an order of its own"
    return how if len(ran) == len(first) else f"{how}, more than once"


def _equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def kept_whole_rows() -> list[Row]:
    """Return the rows of the VAEs that ComfyUI keeps whole."""
    whole, examined = kept_whole_by_comfyui(), {case.family for case in CASES}
    note = "left alone: ComfyUI does not allow it to be offloaded"
    names = {family: needs.split(":")[1] for family, needs in KEPT_WHOLE.items() if family not in examined}
    return [Row("vae", f, name, "–", "–", "–", note) for f, name in names.items() if name in whole]


def all_findings() -> list[Finding]:
    """Examine everything that this ComfyUI has."""
    found = [examine(case) for case in CASES if case.missing() is None]
    return found + [Finding(row) for row in kept_whole_rows()]
