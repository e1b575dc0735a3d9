"""ComfyUI's memory manager driven at random: what it believes, what is on the card, and the numbers agree."""

from __future__ import annotations

import gc
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from . import Accelerator
from .comfyui import ComfyUI
from .placing import MIB, end_node, loaded, place
from .test_inside_tensors import GIVEN, WIDTH, Block, Stacked

RESERVE = 4 * MIB


class Machine(RuleBasedStateMachine):
    """Clones of one placed model, its unplaced sibling, and another model that wants the card."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = torch.inference_mode()
        self.mode.__enter__()
        self.sim = Accelerator(cap=1 << 34)
        self.sim.__enter__()
        self.comfy = ComfyUI(self.sim)
        mm, patches = self.comfy.mm, self.comfy._patches
        patches.set(mm, "minimum_inference_memory", lambda: RESERVE)
        patches.set(mm, "extra_reserved_memory", lambda: 0)
        self.model, self.other = self.uneven(), Stacked(self.comfy.ops.manual_cast, count=12)
        self.wired, self.bystander = self.patcher(self.model), self.patcher(self.other)
        self.whole = sum(p.nbytes for p in self.model.parameters())
        self.clones: list[Any] = []
        self.policies: list[Any] = []
        self.expected = {0: self.model(GIVEN)}
        self.strengths: dict[int, float] = {}
        self.rule_place(None)
        self.sim.cap = RESERVE + 2 * self.whole

    def uneven(self) -> Stacked:
        inners = iter((64, 512, 256, 96, 384, 128))
        return Stacked(self.comfy.ops.manual_cast, lambda ops: Block(ops, next(inners)), count=6)

    def patcher(self, model: torch.nn.Module) -> Any:
        patcher = self.comfy.model_patcher.ModelPatcher(model, self.sim.device, torch.device("cpu"))
        patcher.force_cast_weights = True  # as 0.33 sets it for text encoders
        return patcher

    def teardown(self) -> None:
        self.clones.clear()
        self.policies.clear()
        self.comfy.close()
        gc.collect()
        assert self.sim.memory.live == 0, self.sim.memory.report()
        self.sim.__exit__(None, None, None)
        self.mode.__exit__(None, None, None)

    def use(self, patcher: Any) -> torch.Tensor:
        self.comfy.mm.load_models_gpu([patcher])
        result = patcher.model(GIVEN.to(self.sim.device)).cpu()
        end_node(self.comfy)
        return result

    @rule(budget=st.sampled_from([None, "100KB", "400KB", "1MB"]))
    def rule_place(self, budget: str | None) -> None:
        placed = place("model", self.wired, vram_budget=budget)
        self.policies.append(placed)
        self.clones.append((placed.value, 0))

    @rule(which=st.integers(0, 9))
    def rule_use(self, which: int) -> None:
        clone, strength = self.clones[which % len(self.clones)]
        # A patch on a resident weight is computed once, on a streamed one at every use: equal but for rounding.
        torch.testing.assert_close(self.use(clone), self.reference(strength), atol=1e-4, rtol=1e-4)

    def reference(self, strength: int) -> torch.Tensor:
        if strength not in self.expected:
            plain = self.uneven()
            plain.blocks[1].up.weight.add_(0.01 * strength)
            self.expected[strength] = plain(GIVEN)
        return self.expected[strength]

    @rule(which=st.integers(0, 9))
    def rule_clone(self, which: int) -> None:
        clone, strength = self.clones[which % len(self.clones)]
        self.clones.append((clone.clone(), strength))

    @rule(which=st.integers(0, 9))
    def rule_patch(self, which: int) -> None:
        clone, strength = self.clones[which % len(self.clones)]
        patched = clone.clone()
        patched.add_patches({"blocks.1.up.weight": (torch.full((512, WIDTH), 0.01),)}, 1.0)
        self.clones.append((patched, strength + 1))

    @rule(which=st.integers(0, 9))
    def rule_drop(self, which: int) -> None:
        if len(self.clones) > 1:
            self.clones.pop(which % len(self.clones))
            gc.collect()

    @rule()
    def rule_use_the_unplaced_sibling(self) -> None:
        torch.testing.assert_close(self.use(self.wired), self.expected[0])

    @rule(required=st.sampled_from([0, MIB]))
    def rule_other(self, required: int) -> None:
        self.comfy.mm.load_models_gpu([self.bystander], memory_required=required)

    @rule(share=st.sampled_from([0.2, 0.6, 1.0]))
    def rule_free(self, share: float) -> None:
        self.comfy.mm.free_memory(share * self.sim.cap, self.sim.device)

    @rule()
    def rule_unload(self) -> None:
        self.comfy.mm.unload_all_models()

    @invariant()
    def nothing_is_hidden(self) -> None:
        for entry in self.comfy.mm.current_loaded_models:
            if entry.model is not None:
                assert 0 <= entry.model.loaded_size() <= entry.model.model_size()
        grains = 512 * sum(
            1 for m in (self.model, self.other) for p in m.parameters() if p.device.type == "sim"
        )
        assert abs(self.sim.memory.live - self.believed()) <= grains
        assert self.sim.memory.reserved <= self.sim.cap

    def believed(self) -> int:
        """What ComfyUI counts; a patcher that died while it was loaded left its weights to its parent."""
        counted = {id(e.model.model) for e in self.comfy.mm.current_loaded_models if e.model is not None}
        orphans = [m for m in (self.model, self.other) if id(m) not in counted]
        return loaded(self.comfy) + sum(m.model_loaded_weight_memory for m in orphans)


def test_at_random() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=12,
            stateful_step_count=15,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
