"""Apply a policy to the objects of a workflow: clone, decide, attach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import comfy.model_management as mm
from torch import nn

from ..engine import Ledger, Stack, least_slot_bytes, parameter_bytes, slot_bytes_for
from ..engine.stacks import stack_layers
from ..log import debug
from ..policy import (
    NOT_SAID,
    Beside,
    Capabilities,
    ComponentFacts,
    Decision,
    HostTier,
    MachineFacts,
    Plan,
    Policy,
    Setting,
    VaeUse,
    not_ours,
)
from ..policy.making_room import resolve_with_room
from . import debug_lines, hardware
from .attachment import strip
from .capabilities import capabilities_of
from .choose import choose_backend
from .dynamic_pages import least_bytes
from .embedding import input_tables
from .file_layers import FileLayers
from .handles import Handle, free_name, is_dynamic, open_handle, patcher_in
from .kept_dtype import keeps_dtype
from .layer_store import Kept, keep, store_now
from .learning import recall
from .loose import loose_bytes, loose_weights
from .making_room import MakingRoom
from .placed import Placed, Placements
from .record import record_of
from .rounds import running_node
from .sampling import watch_sampling
from .saving import watch_saving
from .standing import Standing
from .structure import find_stacks, why_left_alone
from .unmanaged import Unmanaged, weights_of
from .weight_files import usable, why_unusable
from .where import devices_of
from .whole_prompt import NOTHING_AROUND, Around, bystanders_now


def apply_policy(
    policy: Policy,
    objects: Mapping[str, Any],
    files: Mapping[str, list[Path]],
    earlier: Placements,
    on_step: Callable[[], None] = lambda: None,
    vae_use: VaeUse = NOT_SAID,
    around: Around = NOTHING_AROUND,
) -> tuple[dict[str, Any], Placements]:
    """Place the components of a workflow.

    Args:
        policy: what was asked for.
        objects: socket (`model`, …, or a type in lower case) → ComfyUI object; never changed.
        files: socket → safetensors files that its weights may have come from.
        earlier: what an earlier loader of the chain has placed.
        on_step: called after each component, for progress.
        vae_use: what the prompt says about the use of the VAE.
        around: what else the prompt uses.

    Returns:
        Socket → the object to hand on, and all placements with the new ones added.

    Raises:
        AttachError: an object holds no model.
        StrictPolicyError: the policy is strict, and this machine cannot do all that it asks for.
    """
    models = [_model_in(slot, value) for slot, value in objects.items()]
    kept = earlier.without(models)
    machine = hardware.machine_facts()
    opened = _open(objects, kept, earlier, vae_use, machine)
    if around.together:
        opened = [one._replace(facts=replace(one.facts, in_turn=False)) for one in opened]
    ours = [*models, *(model for placed in kept.placed if (model := placed.model) is not None)]
    beside = Beside(kept.decided, bystanders_now(around, ours))
    room = MakingRoom(
        {**{p.facts.name: p.model for p in kept.placed if p.model is not None}, **_models(opened)}
    )
    machine = room.on(machine)
    plan, opened = _resolve(policy, machine, opened, files, beside)
    room.decided(plan)
    placed = []
    for one, decision in zip(opened, plan, strict=True):
        done = _carry_out(one, decision)
        debug(partial(debug_lines.decision, done))
        placed.append(done)
        on_step()
    standing = Standing(policy, machine, placed, kept, around, beside, room)
    return {one.handle.socket: one.handle.value for one in opened}, Placements(
        (*kept.placed, *placed),
        (*earlier.policies, policy),
        (*earlier.notes, *plan.notes),
        (*earlier.standing, standing),
    )


def _model_in(slot: str, value: Any) -> nn.Module:
    bare = weights_of(slot, value)
    return patcher_in(slot, value).model if bare is None else bare


def _models(opened: Sequence[_Opened]) -> dict[str, nn.Module]:
    """Return the models by the names of their components."""
    handles = (one.handle for one in opened)
    return {h.component: h.model if isinstance(h, Unmanaged) else h.patcher.model for h in handles}


def _carry_out(one: _Opened, decision: Decision) -> Placed:
    if isinstance(one.handle, Unmanaged):
        return Placed(one.facts, decision, one.handle.backend(), Ledger(), one.handle.model, running_node())
    ledger = Ledger()
    backend = choose_backend(decision, one.handle, one.stacks, one.found, ledger, one.facts)
    model = one.handle.patcher.model  # for `cpu` it may be another one than that which came in
    record_of(model).rounds.placed_now()
    backend.attach(one.handle.patcher, one.stacks)
    if one.found is not None or keeps_dtype(model):
        watch_saving(one.handle.patcher)
    if one.handle.socket == "model":
        watch_sampling(one.handle.patcher)
    return Placed(one.facts, decision, backend, ledger, model, running_node())


class _Opened(NamedTuple):
    """One component on its way to a decision."""

    handle: Handle | Unmanaged
    stacks: tuple[Stack, ...]
    facts: ComponentFacts
    found: FileLayers | None = None


def _open(
    objects: Mapping[str, Any],
    kept: Placements,
    earlier: Placements,
    vae_use: VaeUse,
    machine: MachineFacts,
) -> list[_Opened]:
    names = set(kept.names)
    opened = []
    for slot, value in objects.items():
        bare = weights_of(slot, value)
        if bare is not None:
            one = _unmanaged(Unmanaged(slot, free_name(slot, names), value, bare), earlier)
            names.add(one.handle.component)
            opened.append(one)
            continue
        handle = open_handle(slot, value, names, vae_use, objects.get("model"))
        replaced = earlier.of(handle.patcher.model)
        strip(handle.patcher)  # of an earlier loader in a row: the later one wins
        names.add(handle.component)
        stacks = find_stacks(handle.patcher.model, paged=is_dynamic(handle.patcher))
        can = capabilities_of(handle, stacks, machine)
        opened.append(_Opened(handle, stacks, _component_facts(handle, stacks, can, replaced)))
    return opened


def _unmanaged(handle: Unmanaged, earlier: Placements) -> _Opened:
    replaced = earlier.of(handle.model)
    facts = ComponentFacts(
        name=handle.component,
        model=handle.kind,
        bytes=parameter_bytes(handle.model),
        layers=0,
        layer_bytes=0,
        why_no_layers=handle.why,
        can=not_ours(handle.why),
        replaces=str(replaced) if replaced is not None else "",
    )
    return _Opened(handle, (), facts)


def _resolve(
    policy: Policy,
    machine: MachineFacts,
    opened: Sequence[_Opened],
    files: Mapping[str, Sequence[Path]],
    beside: Beside,
) -> tuple[Plan, list[_Opened]]:
    """Decide, and look into the model files where a decision leans on them, which takes reading them."""
    opened = list(opened)
    while True:
        plan = resolve_with_room(policy, machine, [one.facts for one in opened], beside)
        unread = [
            index
            for index, (one, decision) in enumerate(zip(opened, plan, strict=True))
            if decision.host_tier is HostTier.MAPPED and one.found is None
        ]
        if not unread:
            return plan, opened
        for index in unread:
            one = opened[index]
            asked = policy.explicit.value(HostTier, Setting.HOST, one.facts.name) is HostTier.MAPPED
            opened[index] = _look_into(one, files.get(one.handle.socket, ()), store=asked)


def _look_into(one: _Opened, paths: Sequence[Path], *, store: bool) -> _Opened:
    """Find what files hold of a component.

    Args:
        one: the component.
        paths: those that it may have come from.
        store: whether to write what none of them holds to a file of ours.
    """
    assert isinstance(one.handle, Handle)  # nothing else has layers
    model, files = one.handle.patcher.model, usable(paths)
    kept = Kept(FileLayers(model, one.stacks, files))
    if store and kept.found.lacks_layers:
        one.handle.unload()  # without patches, and in memory
        again = FileLayers(model, one.stacks, files)
        kept = keep(model, one.stacks, files, again) if again.lacks_layers else Kept(again)
    found, folder = kept.found, store_now().folder
    facts = replace(
        one.facts,
        file_bytes=found.bytes,
        file_beside_bytes=found.beside,
        stored_bytes=found.bytes_in(folder),
        stored_in=str(folder),
        why_not_stored=kept.why_not,
    )
    if not found.bytes:
        why = why_unusable(paths, one.handle.socket, model)
        facts = replace(facts, why_no_file=f"{why}, and {kept.why_not}" if kept.why_not else why)
    return one._replace(facts=facts, found=found)


def _component_facts(
    handle: Handle, stacks: tuple[Stack, ...], can: Capabilities, replaced: Placed | None
) -> ComponentFacts:
    model, record = handle.patcher.model, record_of(handle.patcher.model)
    recall(model)
    loose = loose_bytes(model, list(stack_layers(stacks)))
    return ComponentFacts(
        name=handle.component,
        model=type(model).__name__,
        bytes=parameter_bytes(model),
        layers=sum(len(stack.layers) for stack in stacks),
        layer_bytes=sum(stack.bytes for stack in stacks),
        slot_bytes=slot_bytes_for(stacks) + loose,
        least_bytes=_least_bytes(handle, stacks, loose),
        why_no_layers=(not stacks and why_left_alone(model)) or "",
        pinned_bytes=record.masters.pinned_bytes(handle.patcher, stacks),
        table_bytes=sum(map(parameter_bytes, input_tables(model))),
        loose_bytes=loose_weights(model, list(stack_layers(stacks))),
        bytes_to_add=record.masters.bytes_to_add(stacks, record.mapped),
        on_cpu=mm.is_device_cpu(handle.patcher.load_device),
        passes=record.passes,
        activation_bytes=record.demand,
        can=can,
        spread=devices_of(model),
        replaces=str(replaced) if replaced is not None else "",
    )


def _least_bytes(handle: Handle, stacks: tuple[Stack, ...], loose: int) -> int:
    model = handle.patcher.model
    if is_dynamic(handle.patcher):
        return least_bytes(model, input_tables(model))
    return least_slot_bytes(stacks) + loose
