"""Apply a policy to the objects of a workflow: clone, decide, attach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import comfy.model_management as mm

from ..engine import Ledger, Stack, least_slot_bytes, parameter_bytes, slot_bytes_for
from ..engine.stacks import stack_layers
from ..log import debug
from ..policy import NOT_SAID, ComponentFacts, Policy, VaeUse, resolve
from . import debug_lines, hardware
from .attachment import strip
from .choose import choose_backend
from .handles import Handle, is_dynamic, open_handle
from .loose import loose_bytes
from .placed import Placed, Placements
from .record import record_of
from .structure import find_stacks, why_left_alone


def apply_policy(
    policy: Policy,
    objects: Mapping[str, Any],
    files: Mapping[str, list[Path]],
    earlier: Placements,
    on_step: Callable[[], None] = lambda: None,
    vae_use: VaeUse = NOT_SAID,
) -> tuple[dict[str, Any], Placements]:
    """Place the components of a workflow.

    Args:
        policy: what was asked for.
        objects: socket (`model`, `clip`, `vae`, `clip_vision`) → ComfyUI object; never changed.
        files: socket → safetensors files that its weights may have come from.
        earlier: what an earlier loader of the chain has placed.
        on_step: called after each component, for progress.
        vae_use: what the prompt says about the use of the VAE.

    Returns:
        Socket → the object to hand on, and all placements with the new ones added.

    Raises:
        AttachError: an object holds no model.
        StrictPolicyError: the policy is strict, and this machine cannot do all that it asks for.
    """
    names = set(earlier.names)
    opened = []
    for slot, value in objects.items():
        handle = open_handle(slot, value, names, vae_use, objects.get("model"))
        strip(handle.patcher)  # of an earlier loader in a row: the later one wins
        names.add(handle.component)
        opened.append((handle, find_stacks(handle.patcher.model, paged=is_dynamic(handle.patcher))))
    facts = [_component_facts(handle, stacks) for handle, stacks in opened]
    plan = resolve(policy, hardware.machine_facts(), facts, earlier.decisions)
    placed = list(earlier.placed)
    for (handle, stacks), component, decision in zip(opened, facts, plan, strict=True):
        ledger = Ledger()
        found = files.get(handle.slot, [])
        backend = choose_backend(decision, handle, stacks, found, ledger, component.loops)
        record_of(handle.patcher.model).rounds.placed_now()
        backend.attach(handle.patcher, stacks)
        done = Placed(component, decision, backend, ledger, handle.patcher.model)
        debug(partial(debug_lines.decision, done))
        placed.append(done)
        on_step()
    return {handle.slot: handle.value for handle, _ in opened}, Placements(
        tuple(placed), (*earlier.policies, policy), (*earlier.notes, *plan.notes)
    )


def _component_facts(handle: Handle, stacks: tuple[Stack, ...]) -> ComponentFacts:
    model, record = handle.patcher.model, record_of(handle.patcher.model)
    loose = loose_bytes(model, list(stack_layers(stacks)))
    return ComponentFacts(
        name=handle.component,
        model=type(model).__name__,
        bytes=parameter_bytes(model),
        layers=sum(len(stack.layers) for stack in stacks),
        layer_bytes=sum(stack.bytes for stack in stacks),
        slot_bytes=slot_bytes_for(stacks) + loose,
        least_bytes=least_slot_bytes(stacks) + loose,
        why_no_layers=(not stacks and why_left_alone(model)) or "",
        pinned_bytes=record.masters.pinned_bytes(handle.patcher, stacks),
        bytes_to_add=record.masters.bytes_to_add(stacks, record.mapped),
        on_cpu=mm.is_device_cpu(handle.patcher.load_device),
        passes=record.trace.passes,
        paged=is_dynamic(handle.patcher),
        movable=handle.slot != "vae" or not getattr(handle.value, "disable_offload", False),
    )
