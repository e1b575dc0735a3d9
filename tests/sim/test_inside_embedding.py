"""A token table that is looked up on the host is the same table to whoever asks the text model for it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from . import comfy_models
from .comfyui import ComfyUI
from .placing import BIG, PlacedObject, place, small_clip

pytestmark = pytest.mark.usefixtures("_inference_mode")

MANAGERS = ["legacy", "dynamic"]


@pytest.fixture(params=MANAGERS)
def managed(comfy: ComfyUI, request: pytest.FixtureRequest) -> ComfyUI:
    """ComfyUI with either memory manager on an ample card."""
    if request.param == "dynamic":
        if not comfy.has_dynamic:
            pytest.skip("This ComfyUI has no dynamic VRAM (it came after 0.3.75).")
        comfy.enable_dynamic()
    comfy.sim.cap = BIG
    return comfy


def text_model(placed: PlacedObject) -> nn.Module:
    """The module whose table it is."""
    return placed.patcher.model.get_submodule("clip_l.transformer")


def real_table(placed: PlacedObject) -> nn.Embedding:
    owner = text_model(placed)
    return type(owner).get_input_embeddings(owner)


def encode(clip: Any) -> torch.Tensor:
    return comfy_models.encode(clip, "fox")[0]


def encode_again(comfy: ComfyUI, placed: PlacedObject) -> torch.Tensor:
    """Encode with what is loaded, as a pack does that calls the text model itself and names no device."""
    model = placed.patcher.model
    model.reset_clip_options()
    result: torch.Tensor = model.encode_token_weights(placed.value.tokenize("fox"))[0]
    return result


@pytest.fixture
def loaded(managed: ComfyUI) -> PlacedObject:
    """An encoder whose table stays on the host, after its first encode."""
    placed = place("clip", small_clip(managed))
    encode(placed.value)
    assert real_table(placed).weight.device.type == "cpu"
    return placed


def test_the_table_is_what_it_was(managed: ComfyUI, loaded: PlacedObject) -> None:
    real, table = real_table(loaded), text_model(loaded).get_input_embeddings()
    assert isinstance(table, type(real))
    assert isinstance(table.weight, nn.Parameter)
    for name in ("num_embeddings", "embedding_dim", "padding_idx", "training"):
        assert getattr(table, name) == getattr(real, name)
    for name in ("shape", "dtype", "nbytes", "requires_grad", "ndim", "is_contiguous"):
        got, expected = getattr(table.weight, name), getattr(real.weight, name)
        assert (got() if callable(got) else got) == (expected() if callable(expected) else expected)
    assert table.weight.device == managed.sim.device
    for values in (table.weight, table.weight.data, table.weight.detach(), table.state_dict()["weight"]):
        assert torch.equal(values.cpu(), real.weight)
    assert table.weight.tolist() == real.weight.tolist()
    assert list(table.state_dict()) == list(real.state_dict())
    file = io.BytesIO()
    torch.save(table.weight, file)
    file.seek(0)
    for copied in (copy.deepcopy(table.weight), torch.load(file)):
        assert type(copied) is nn.Parameter
        assert torch.equal(copied, real.weight)


COMPUTED: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rows": lambda w, ids, x: w[ids],
    "one row": lambda w, ids, x: w[7] + 0,
    "embedding": lambda w, ids, x: functional.embedding(ids, w),
    "index_select": lambda w, ids, x: torch.index_select(w, 0, ids.flatten()),
    "head": lambda w, ids, x: functional.linear(x, w),
    "matmul": lambda w, ids, x: x @ w.T,
    "similarity": lambda w, ids, x: functional.cosine_similarity(x[:1], w),
    "half": lambda w, ids, x: w.half(),
    "to": lambda w, ids, x: w.to(x.device, torch.float64) + 1,
    "mean": lambda w, ids, x: w.mean(),
    "arithmetic": lambda w, ids, x: w * 2 - w,
    "slice": lambda w, ids, x: w[3:5] + x[:2],
    "concatenated": lambda w, ids, x: torch.cat([w[:2], x]),
}


def test_what_is_computed_from_the_table_is_computed_on_the_card(
    managed: ComfyUI, loaded: PlacedObject
) -> None:
    table, device = text_model(loaded).get_input_embeddings(), managed.sim.device
    resident = real_table(loaded).weight.data.to(device)
    ids = torch.tensor([[3, 5, 7]], device=device)
    x = torch.randn(4, table.embedding_dim, generator=torch.Generator().manual_seed(2))
    x = x.to(device, resident.dtype)
    for what, compute in COMPUTED.items():
        got, expected = compute(table.weight, ids, x), compute(resident, ids, x)
        assert (got.device, got.dtype) == (device, expected.dtype), what
        assert torch.equal(got.cpu(), expected.cpu()), what


def test_rows_are_looked_up_on_the_host(managed: ComfyUI, loaded: PlacedObject) -> None:
    table, device = text_model(loaded).get_input_embeddings(), managed.sim.device
    ids = torch.tensor([[3, 5, 7]], device=device)
    with managed.sim.measure() as m:
        rows = [table(ids), functional.embedding(ids, table.weight), table.weight[ids]]
    assert m.to_device == 3 * rows[0].nbytes
    assert all(torch.equal(r, rows[0]) for r in rows)


WRITES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "values": lambda w, row: w.data.__setitem__(5, row),
    "row": lambda w, row: w[5].copy_(row),
    "ids": lambda w, row: w.__setitem__(torch.tensor([5], device=row.device), row),
    "view": lambda w, row: w.view(-1).narrow(0, 5 * len(row), len(row)).copy_(row),
    "in place": lambda w, row: w.zero_().add_(row),
    "out": lambda w, row: torch.add(row, torch.zeros_like(w), out=w),
    "assigned": lambda w, row: setattr(w, "data", torch.stack([row] * len(w))),
}


def test_what_is_written_to_the_table_is_what_is_looked_up(managed: ComfyUI, loaded: PlacedObject) -> None:
    table, device = text_model(loaded).get_input_embeddings(), managed.sim.device
    for number, (what, write) in enumerate(WRITES.items(), start=1):
        row = torch.full((table.embedding_dim,), 0.25 * number, device=device, dtype=table.weight.dtype)
        write(table.weight, row)
        assert torch.equal(real_table(loaded).weight[5], row.cpu()), what
        assert torch.equal(table(torch.tensor([5], device=device))[0], row), what


def test_hooks_on_the_table_run_once_for_each_lookup(managed: ComfyUI, loaded: PlacedObject) -> None:
    seen: list[torch.device] = []
    handle = real_table(loaded).register_forward_hook(lambda module, args, rows: seen.append(rows.device))
    encode(loaded.value)
    handle.remove()
    assert seen == [managed.sim.device]


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_somebody_else_put_in_its_place_is_asked_and_stays(managed: ComfyUI, when: str) -> None:
    """A pack that shadows the method on the text model, before or while our encoder is loaded."""
    wired = small_clip(managed)
    placed = place("clip", wired)
    expected = encode(placed.value)
    managed.mm.unload_all_models()
    owner, asked = text_model(placed), []
    if when == "after":
        encode(placed.value)
    found = owner.get_input_embeddings

    def theirs() -> Any:
        asked.append(1)
        return found()

    owner.get_input_embeddings = theirs
    for _ in range(2):
        assert torch.equal(encode(placed.value), expected)
    assert asked
    managed.mm.unload_all_models()
    assert owner.get_input_embeddings is theirs
    assert owner.get_input_embeddings() is real_table(placed)
    del owner.get_input_embeddings
    assert torch.equal(encode(placed.value), expected)
    managed.mm.unload_all_models()
    assert "get_input_embeddings" not in owner.__dict__


def test_one_of_two_policies_that_are_loaded_at_once_leaves_the_other_its_table(managed: ComfyUI) -> None:
    wired = small_clip(managed)
    one, two = place("clip", wired), place("clip", wired, vram_budget="16MB")
    managed.mm.load_models_gpu([one.patcher, two.patcher])
    last, first = (loaded.model for loaded in managed.mm.current_loaded_models)
    owner = text_model(one)
    first.detach(unpatch_all=False)
    assert owner.get_input_embeddings().weight.device == managed.sim.device
    last.detach(unpatch_all=False)
    assert "get_input_embeddings" not in owner.__dict__


class Answers(nn.Module):
    """A text model that answers with what it is given, or has nothing to answer with."""

    def __init__(self, answer: nn.Module | None) -> None:
        super().__init__()
        self.answer = answer

    def get_input_embeddings(self) -> nn.Module:
        if self.answer is None:
            raise NotImplementedError
        return self.answer


def test_only_token_tables_are_tables(comfy: ComfyUI) -> None:
    """Vision towers answer with a convolution, base classes with an error, and nested models with one table."""
    from offload_runtime.adapter.embedding import HostEmbeddings

    inner = Answers(nn.Embedding(8, 4))
    nested, tower, empty = Answers(inner.answer), Answers(nn.Conv2d(1, 1, 1)), Answers(None)
    nested.inner = inner
    model = nn.ModuleList([nested, tower, empty])
    embeddings = HostEmbeddings(model, comfy.sim.device)
    assert embeddings.tables() == [inner.answer]
    embeddings.install()
    assert tower.get_input_embeddings() is tower.answer
    for owner in (nested, inner):
        assert owner.get_input_embeddings().weight.device == comfy.sim.device
    embeddings.uninstall()
    assert inner.get_input_embeddings() is inner.answer


@pytest.mark.parametrize("wish", ["layerwise", "resident", "offload"])
def test_an_encode_that_names_no_device_runs_on_the_card(managed: ComfyUI, wish: str) -> None:
    placed = place("clip", small_clip(managed), wish)
    expected = encode(placed.value)
    with managed.sim.measure() as m:
        got = encode_again(managed, placed)
    assert m.kernels > 20
    assert torch.equal(got.cpu(), expected.cpu())
