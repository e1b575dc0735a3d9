"""Where the report says that weights are, against what the system counts for this process."""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comfy.hooks
import comfy.model_management as mm
import models
import pytest
import torch
from placing import PlacedObject, place, policy

from offload_runtime.adapter.where import devices_of
from scripts.process_memory import mapped_ranges, private_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1024 * 1024
LITTLE = MIB  # the tensors that do not rest: position table, projection, norms
LARGE = {"hidden_size": 512, "intermediate_size": 4096, "num_attention_heads": 8}
FC1 = "encoder.layers.{}.mlp.fc1.weight"  # 4 MiB each


def test_a_model_on_several_accelerators_is_spread_over_them() -> None:
    def weights(*devices: str) -> Any:
        parameters = [SimpleNamespace(device=torch.device(device)) for device in devices]
        return SimpleNamespace(parameters=lambda: iter(parameters))

    assert devices_of(weights("cpu", "meta")) == 1
    assert devices_of(weights("cpu", "cuda:0", "cuda:0")) == 1
    assert devices_of(weights("cuda:1", "cuda:0", "cpu")) == 2


@dataclass
class Encoder:
    """A placed encoder of 80 MiB, and its file."""

    object: PlacedObject
    file: Path

    def in_memory(self) -> int:
        """Return the bytes of weights that the report calls memory, which are those that the system does."""
        tiers, ranges = self.object.row.tiers, mapped_ranges(self.file)
        parameters = list(self.object.patcher.model.parameters())
        with torch._C.DisableTorchFunctionSubclass():  # which would wake them
            in_file = [p.nbytes for p in parameters if any(p.data_ptr() in r for r in ranges)]
        written = private_bytes(self.file)
        assert abs(sum(in_file) - tiers.get("file", 0) - written) <= 2 * mmap.PAGESIZE
        assert tiers["memory"] + tiers.get("file", 0) == sum(p.nbytes for p in parameters)
        return tiers["memory"]


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Encoder:
    monkeypatch.setattr(models, "CLIP_CONFIG", models.CLIP_CONFIG | LARGE)
    placed = place(models.FAMILIES["clip"], models.clip(), policy("layerwise"), tmp_path)
    return Encoder(placed, tmp_path / "model.safetensors")


def _with_hook(clip: Any) -> Any:
    """Return a clone with a scheduled LoRA hook on the feed-forward weights of every layer, as ComfyUI's nodes do."""
    clone = clip.clone()
    prefix = "clip_l.transformer.text_model."
    weights = clone.patcher.model.state_dict()
    names = [prefix + FC1.format(i) for i in range(3)]
    hooks = comfy.hooks.create_hook_lora(
        {
            f"lora_te_text_model_encoder_layers_{i}_mlp_fc1.{k}": v
            for i in range(3)
            for k, v in _lora().items()
        },
        1.0,
        1.0,
    )
    assert all(name in weights for name in names)
    hooks.set_keyframes_on_hooks(None)
    clone.patcher.forced_hooks = hooks
    clone.use_clip_schedule = True
    target = comfy.hooks.create_target_dict(comfy.hooks.EnumWeightTarget.Clip)
    clone.patcher.register_all_hook_patches(hooks, target)
    return clone


def _lora() -> dict[str, torch.Tensor]:
    return {"lora_up.weight": torch.full((4096, 4), 0.05), "lora_down.weight": torch.full((4, 512), 0.05)}


def _encode_scheduled(clip: Any) -> torch.Tensor:
    tokens = {"l": [[(i, 1.0) for i in (5, 6, 7, 1, *(0,) * 73)]]}
    with torch.inference_mode():
        return clip.encode_from_tokens_scheduled(tokens, show_pbar=False)[0][0].clone()


def test_weights_at_rest_take_no_memory(encoder: Encoder) -> None:
    for _ in range(2):
        assert encoder.in_memory() < LITTLE
        models.encode(encoder.object.value)


def test_a_scheduled_lora_hook_takes_memory_while_it_is_in_force_and_none_after(encoder: Encoder) -> None:
    expected = models.encode(encoder.object.value)
    content = encoder.file.read_bytes()
    hooked = _with_hook(encoder.object.value)
    with_hook = _encode_scheduled(hooked)
    assert not torch.equal(with_hook, expected)
    assert 12 * MIB <= encoder.in_memory() < 12 * MIB + LITTLE
    assert torch.equal(_encode_scheduled(hooked), with_hook)
    assert torch.equal(models.encode(encoder.object.value), expected)
    assert encoder.in_memory() < LITTLE
    assert encoder.file.read_bytes() == content


def test_when_a_component_is_unloaded_what_a_hook_wrote_back_is_the_files_again(encoder: Encoder) -> None:
    _encode_scheduled(_with_hook(encoder.object.value))
    mm.unload_all_models()
    assert encoder.in_memory() < LITTLE


@pytest.mark.parametrize("others", [False, True])
def test_loading_a_state_dict_is_counted_and_what_is_the_same_rests_again(
    encoder: Encoder, others: bool
) -> None:
    model = encoder.object.patcher.model
    models.encode(encoder.object.value)
    with torch.no_grad():
        model.load_state_dict({k: v + 0.5 if others else v.clone() for k, v in model.state_dict().items()})
    assert encoder.in_memory() > 70 * MIB
    mm.unload_all_models()
    assert encoder.in_memory() > 70 * MIB if others else encoder.in_memory() < LITTLE


def test_what_was_written_without_torch_telling_is_counted_and_used(encoder: Encoder) -> None:
    expected = models.encode(encoder.object.value)
    parameters = dict(encoder.object.patcher.model.named_parameters())
    weight = next(p for name, p in parameters.items() if name.endswith(FC1.format(1)))
    backup = weight.detach().clone()
    with torch.inference_mode(), torch._C.DisableTorchFunctionSubclass():
        weight.data.fill_(0.01)
    assert encoder.object.row.tiers["memory"] >= private_bytes(encoder.file) >= 4 * MIB
    changed = models.encode(encoder.object.value)
    assert not torch.equal(changed, expected)
    assert torch.equal(models.encode(encoder.object.value.clone()), changed)
    mm.unload_all_models()
    assert torch.equal(models.encode(encoder.object.value), changed)
    assert 4 * MIB <= encoder.in_memory() < 4 * MIB + LITTLE
    with torch.no_grad():
        weight.data.copy_(backup)
    mm.unload_all_models()
    assert encoder.in_memory() < LITTLE
    assert torch.equal(models.encode(encoder.object.value), expected)
