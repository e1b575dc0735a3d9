"""The property that holds all of it: random policies, families and machines, under both memory managers.

After any of them, and after every use: live bytes are within every budget that the decision keeps, or a limit says
otherwise; the word that is applied and the bytes in the report are those that the simulator counts; and a strict
policy refuses exactly what has a limit. The models are small, and only their shapes count.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from .aimdo import vbar
from .comfyui import ComfyUI
from .maps import BF16, Maps
from .placing import end_node, vram_state
from .policy_cases import BATCHES, FAMILIES, NAMES, SEED, Case, batch, simplest
from .prompt_change import TextEncoder

pytestmark = [
    pytest.mark.usefixtures("_inference_mode", "_torch_is_no_garbage"),
    pytest.mark.card(profile="rtx4090", shapes=True),
    pytest.mark.parametrize("number", BATCHES),
]

GRAIN = 16 * 1024
"""What rounding of allocations may add to a component."""


class Bench:
    """The models of all families, made once."""

    def __init__(self, comfy: ComfyUI, width: int) -> None:
        self.comfy, self.width = comfy, width
        ops = comfy.ops.manual_cast
        with comfy.dynamic_off() if comfy.has_dynamic else vram_state(comfy, "NORMAL_VRAM"):
            self.models = {
                slot: [Maps(ops, width=width, **options) for options in of] for slot, of in FAMILIES.items()
            }

    def wire(self, case: Case) -> dict[str, Any]:
        """Return the objects that loaders would hand on."""
        made = getattr(self.comfy.model_patcher, "CoreModelPatcher", self.comfy.model_patcher.ModelPatcher)
        patchers = {
            slot: made(self.models[slot][number], self.comfy.sim.device, torch.device("cpu"))
            for slot, number in case.families.items()
        }
        vae = SimpleNamespace(patcher=patchers["vae"], latent_dim=2, disable_offload=False)
        return {"model": patchers["model"], "clip": TextEncoder(patchers["clip"]), "vae": vae}

    def sizes(self, case: Case) -> dict[str, int]:
        return {
            slot: sum(p.nbytes for p in self.models[slot][number].parameters())
            for slot, number in case.families.items()
        }


def policy_of(case: Case, sizes: dict[str, int], strict: bool) -> Any:
    from offload_runtime.policy import Policy, Source, SourceKind

    total = f"{int(case.total * sum(sizes.values()))}B" if case.total is not None else "auto"
    node, override = Source(SourceKind.NODE, "node 1"), Source(SourceKind.OVERRIDE, "node 2")
    policy = Policy.from_widgets(
        node, placements={}, vram_budget=total, mode=case.mode, strict="on" if strict else "auto"
    )
    for slot, name in NAMES.items():
        own = f"{int(case.budgets[slot] * sizes[slot])}B" if slot in case.budgets else "auto"
        wish = Policy.for_component(override, name, placement=case.placements[slot], vram_budget=own)
        policy = policy.extended(wish)
    return policy


def check(comfy: ComfyUI, bench: Bench, case: Case) -> None:
    """Place by one policy, use everything twice, and look after every use.

    Raises:
        AssertionError: it was not as it was decided or reported.
    """
    with flagged(comfy, case.state):
        place_and_use(comfy, bench, case)


def place_and_use(comfy: ComfyUI, bench: Bench, case: Case) -> None:
    from offload_runtime.adapter import Placements, apply_policy
    from offload_runtime.adapter.record import record_of
    from offload_runtime.errors import StrictPolicyError

    sizes = bench.sizes(case)
    for slot, of in case.families.items():
        record_of(bench.models[slot][of])._demands.clear()
    comfy.sim.cap = int(comfy.mm.minimum_inference_memory() + case.room * sum(sizes.values()))
    objects, placed = apply_policy(policy_of(case, sizes, strict=False), bench.wire(case), {}, Placements())
    limited = bool(placed.notes) or any(p.decision.limits for p in placed.placed)
    try:
        apply_policy(policy_of(case, sizes, strict=True), bench.wire(case), {}, Placements())
    except StrictPolicyError:
        assert limited, "refused, and nothing was in the way"
    else:
        assert not limited, [p.decision.limits for p in placed.placed]
    there = dict.fromkeys(FAMILIES, 0)
    try:
        for prompt, slot in product(("first", "second"), case.order):
            others = sum(there.values()) - there[slot]
            comfy.sim.memory.reset_peak()
            demand = int(case.demand * sum(sizes.values())) if slot == "model" else 0
            with executing(prompt, slot):
                use(comfy, bench, case, slot, getattr(objects[slot], "patcher", objects[slot]), demand)
            most = comfy.sim.memory.peak - others  # at least so much: the others only give way meanwhile
            if slot in case.budgets and not converted(case, slot):
                kept = most <= case.budgets[slot] * sizes[slot] + 4 * GRAIN
                assert kept or limits(placed)[NAMES[slot]], (slot, most)
            there = look(comfy, case, sizes, placed)
    finally:
        unload(comfy)  # before the patchers go: ComfyUI cannot unload a model without one


def executing(prompt: str, node: str) -> Any:
    """ComfyUI's executor runs a node of a prompt."""
    return importlib.import_module("comfy_execution.utils").CurrentNodeContext(prompt, node)


def use(comfy: ComfyUI, bench: Bench, case: Case, slot: str, patcher: Any, demand: int) -> None:
    """Use one component as its node does; a sampler asks for memory beside it, and that is learnt."""
    from offload_runtime.adapter.record import record_of

    comfy.mm.load_models_gpu([patcher], demand)
    model = patcher.model
    record_of(model).note_demand(demand)
    if slot == "clip" and bench.models[slot][case.families[slot]].tokens.num_embeddings:
        model.get_input_embeddings()(torch.zeros(1, 1, dtype=torch.long, device=patcher.load_device))
    rows = 0 if patcher.load_device.type == "cpu" else 1  # only there would somebody really multiply
    model(torch.empty(rows, bench.width, dtype=BF16, device=patcher.load_device))
    (comfy.end_node if comfy.has_dynamic else partial(end_node, comfy))()


def unload(comfy: ComfyUI) -> None:
    """Unload everything, also what is loaded on the CPU, which ComfyUI's own "unload all" leaves out; nothing stays.

    ComfyUI would take what is left over for a leak, because the models of a bench outlive their patchers, and would
    collect all garbage at every load from then on.
    """
    comfy.sim.synchronize()  # after a case that failed half-way
    comfy.mm.unload_all_models()
    comfy.mm.free_memory(1e30, torch.device("cpu"))
    assert not comfy.mm.current_loaded_models
    comfy.sim.synchronize()
    torch.empty(1, device=comfy.sim.device)  # what streams have held back is counted as free from here on
    assert comfy.sim.memory.live <= GRAIN, comfy.sim.memory.report()


def limits(placed: Any) -> dict[str, Any]:
    """Return component → what its decision could not keep."""
    return {p.facts.name: p.decision.limits for p in placed.placed}


def converted(case: Case, slot: str) -> bool:
    """Whether each weight is computed with as a copy in another type, which counts as part of the computation."""
    return "dtype" in FAMILIES[slot][case.families[slot]]


def look(comfy: ComfyUI, case: Case, sizes: dict[str, int], placed: Any) -> dict[str, int]:
    """Compare what was promised and what is reported with what the simulator counts; return the bytes on the card."""
    rows = {row.component: row for row in placed.report().rows}
    said = limits(placed)
    device = str(comfy.sim.device)
    there = {slot: rows[name].tiers.get(device, 0) + rows[name].tiers["slot"] for slot, name in NAMES.items()}
    comfy.sim.synchronize()
    torch.empty(1, device=comfy.sim.device)  # what streams have held back is counted as free from here on
    counted = comfy.sim.memory.live
    assert abs(sum(there.values()) - counted) <= 3 * GRAIN, f"{there}\n{comfy.sim.memory.report()}"
    for slot, share in case.budgets.items():
        assert there[slot] <= share * sizes[slot] + GRAIN or said[NAMES[slot]], (slot, there)
    if case.total is not None and not any(said.values()) and not placed.notes:
        assert sum(there.values()) <= case.total * sum(sizes.values()) + 3 * GRAIN, there
    for slot, name in NAMES.items():
        row = rows[name]
        if row.applied == "resident":
            assert there[slot] >= needed(case, slot, sizes, row) - GRAIN, row
        elif row.applied in ("offload", "cpu"):
            assert there[slot] <= 0.01 * sizes[slot], row
        elif row.applied == "comfyui":
            assert row.decided == "auto", row
    return there


@contextmanager
def flagged(comfy: ComfyUI, state: str) -> Iterator[None]:
    """ComfyUI as it is when it was started with the flag for a memory mode."""
    from comfy.cli_args import args

    with vram_state(comfy, state):
        args.novram = state == "NO_VRAM"
        try:
            yield
        finally:
            args.novram = False


def needed(case: Case, slot: str, sizes: dict[str, int], row: Any) -> int:
    """The bytes of a component on the device when all that it needs there is: no table that is looked up in memory.

    Dynamic VRAM keeps weights there in the model's type, whatever they wait in.
    """
    options = FAMILIES[slot][case.families[slot]]
    wide = 2 if options.get("dtype") else 1
    table, always = options.get("table", 0), options.get("always", 0)
    unit = sizes[slot] // (table + always + wide * options["count"])
    there = options["count"] * (1 if "pages" in row.how else wide) + always
    return unit * (there + table * ("is looked up in memory" not in row.how))


@pytest.fixture(scope="module")
def _torch_is_no_garbage() -> Iterator[None]:
    """ComfyUI collects garbage, and all of torch and ComfyUI is not worth walking through each time."""
    yield
    gc.unfreeze()


def run(comfy: ComfyUI, width: int, number: int) -> None:
    """Check the cases of one batch."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
    bench = Bench(comfy, width)
    for index, case in enumerate(batch(number)):
        try:
            check(comfy, bench, case)
        except Exception as error:
            alone = simplest(case, lambda other: fails_alone(comfy, width, other))
            raise AssertionError(
                f"Case {index} of batch {number}, seed {SEED}: {type(error).__name__}: {error}\n{case}\n"
                + (f"fails alone, and so does\n{alone}" if alone else "holds alone: earlier ones matter")
            ) from error


def fails_alone(comfy: ComfyUI, width: int, case: Case) -> bool:
    """Whether a case fails on models that nobody has used before."""
    try:
        check(comfy, Bench(comfy, width), case)
    except Exception:
        return True
    return False


def test_the_legacy_manager_does_what_was_decided(comfy: ComfyUI, number: int) -> None:
    run(comfy, 512, number)


def test_dynamic_vram_does_what_was_decided(comfy: ComfyUI, number: int) -> None:
    if not comfy.has_dynamic:
        pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
    comfy.enable_dynamic()
    assert vbar.PAGE == 2 * 4096 * 4096
    run(comfy, 4096, number)
