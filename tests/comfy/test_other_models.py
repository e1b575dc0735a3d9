"""Whatever else a workflow loads: placed on request where it has a patcher, or a sentence that says who moves it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import other_models
import pytest
import torch
from placing import SOURCE

from offload_runtime.adapter import Placements, apply_policy
from offload_runtime.adapter.carriers import patcher_of
from offload_runtime.engine import parameter_bytes
from offload_runtime.errors import AttachError, StrictPolicyError
from offload_runtime.policy import PlacementRow, Policy


class Case:
    """One placed object, its row, and how it is used."""

    def __init__(self, socket: str, wish: str, files: list[Path] | None = None) -> None:
        make, self.use = other_models.MANAGED[socket]
        self.given, self.socket = make(), socket
        self.expected = self.use(self.given)
        policy = Policy.for_component(SOURCE, socket, placement=wish)
        out, self.placements = apply_policy(policy, {socket: self.given}, {socket: files or []}, Placements())
        self.value = out[socket]

    @property
    def row(self) -> PlacementRow:
        return self.placements.report().rows[0]


@pytest.fixture(params=other_models.MANAGED)
def socket(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("wish", ["auto", "resident", "offload", "cpu", "layerwise"])
def test_a_placement_changes_no_result_and_not_the_object_that_came_in(socket: str, wish: str) -> None:
    case = Case(socket, wish)
    patcher = patcher_of(socket, case.given)
    before = {**vars(case.given)}
    assert case.row.component == socket
    assert patcher_of(socket, case.value) is not patcher
    assert patcher_of(socket, case.value).model is patcher.model
    assert torch.equal(case.use(case.value), case.expected)
    assert {**vars(case.given)} == before
    assert not patcher.attachments
    assert torch.equal(case.use(case.given), case.expected)


def test_layers_are_read_from_the_file(tmp_path: Path) -> None:
    made = other_models.control_net()
    file = models.save(made.control_model, tmp_path / "control.safetensors")
    case = Case("control_net", "layerwise", [file])
    assert torch.equal(case.use(case.value), case.expected)
    assert case.row.applied == "layerwise", case.row.how
    assert case.row.layer_runs > 0
    again = case.value.copy()  # as Apply ControlNet does
    assert torch.equal(case.use(again), case.expected)


@pytest.fixture(params=other_models.BARE)
def bare(request: pytest.FixtureRequest) -> tuple[str, Any]:
    socket, make = other_models.BARE[request.param]
    return socket, make()


def place(
    socket: str, value: Any, policy: Policy, earlier: Placements | None = None
) -> tuple[Any, Placements]:
    out, placements = apply_policy(policy, {socket: value}, {}, earlier or Placements())
    return out[socket], placements


def test_what_has_no_patcher_is_handed_on_with_a_sentence(bare: tuple[str, Any]) -> None:
    socket, value = bare
    before = {**vars(value)}
    out, placements = place(socket, value, Policy())
    (row,) = placements.report().rows
    assert out is value
    assert {**vars(value)} == before
    assert row.component == socket
    assert row.applied == "comfyui"
    assert "nothing can be set for it" in row.how
    assert row.bytes == sum(row.tiers.values()) > 0
    assert row.model == type(value).__name__ or row.model in repr(vars(value))


def test_asking_for_what_has_no_patcher_is_a_limit_and_strict_refuses(bare: tuple[str, Any]) -> None:
    socket, value = bare
    asked = Policy.for_component(SOURCE, socket, placement="offload")
    (row,) = place(socket, value, asked)[1].report().rows
    assert (row.asked, row.decided, row.applied) == ("offload", "auto", "comfyui")
    assert "nothing can be set for it" in row.why
    strict = asked.extended(Policy.from_widgets(SOURCE, strict="on", placements={}))
    with pytest.raises(StrictPolicyError, match="nothing can be set for it"):
        place(socket, value, strict)


def test_a_second_loader_knows_it_again_and_a_second_object_gets_a_number(bare: tuple[str, Any]) -> None:
    socket, value = bare
    _, first = place(socket, value, Policy())
    _, again = place(socket, value, Policy(), first)
    assert [row.component for row in again.report().rows] == [socket]
    other = other_models.style_model()
    _, both = place(socket, other, Policy(), again)
    assert [row.component for row in both.report().rows] == [socket, f"{socket}_2"]


def test_a_patcher_beside_it_is_still_placed() -> None:
    objects = {"style_model": other_models.style_model(), "audio_encoder": other_models.audio_encoder()}
    policy = Policy.for_component(SOURCE, "other", placement="resident")
    _, placements = apply_policy(policy, objects, {}, Placements())
    style, audio = placements.report().rows
    assert (style.applied, audio.applied) == ("comfyui", "resident")
    assert style.bytes == parameter_bytes(objects["style_model"].model)


@pytest.mark.parametrize("value", [object(), {"model": torch.ones(2)}, SimpleNamespace(model=torch.ones(2))])
def test_an_object_that_nobody_knows_goes_through_with_a_sentence(value: Any) -> None:
    out, placements = place("upscale_model", value, Policy())
    (row,) = placements.report().rows
    assert out is value
    assert row.how == "this pack does not see its weights, so nothing can be set for it"
    assert row.bytes == 0


def test_a_model_that_holds_none_is_still_refused() -> None:
    with pytest.raises(AttachError, match="clip input holds no model"):
        place("clip", object(), Policy())
