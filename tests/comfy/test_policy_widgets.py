"""Every setting has its widget, and every widget its setting."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import Graph, node, only

from offload_runtime.policy import SETTINGS, Scope, spell_value
from offload_runtime.policy.components import GROUPS

POLICY = "PlacementPolicy"


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.setting.value)
def test_every_setting_has_a_widget_that_its_row_describes(pack: Any, row: Any) -> None:
    """The widgets of a node stand in the order of the table: workflows hold their values by position."""
    workflow = row.scope is Scope.WORKFLOW
    inputs = inputs_of("PlacementPolicy" if workflow else "SetPlacement")
    kind, options = inputs[row.key]
    assert (options["default"], options["tooltip"]) == ("auto", row.tooltip)
    assert kind == ("COMBO" if row.kind.choices else "STRING")
    assert tuple(options.get("options") or ()) == row.kind.choices
    keys = [other.key for other in SETTINGS if other.scope is row.scope]
    assert [name for name in inputs if name in keys] == keys


def test_every_group_but_that_of_other_models_has_a_widget_of_the_policy_node(pack: Any) -> None:
    found = {
        name: options["placement_group"]
        for name, (_, options) in inputs_of("PlacementPolicy").items()
        if "placement_group" in options
    }
    assert sorted([*found.values(), "other"]) == sorted(GROUPS)
    assert found["diffusion_model"] == "dit"


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.setting.value)
def test_a_widget_sets_its_setting(graph: Graph, row: Any) -> None:
    typed = {"budget": "6GB", "device": "gpu:1"}
    word = typed[row.kind.what] if row.kind.what in typed else row.kind.choices[-1]
    kind, inputs = (POLICY, {}) if row.scope is Scope.WORKFLOW else ("SetPlacement", {"component": "vae"})
    (argument,) = only(graph, {"1": node(kind, **inputs, **{row.key: word})}).arguments
    assert (argument.setting, spell_value(argument.setting, argument.value)) == (row.setting, word)


def inputs_of(kind: str) -> dict[str, Any]:
    """Return what the server tells the browser about a node's inputs."""
    import nodes as core

    info = core.NODE_CLASS_MAPPINGS[f"LayerwiseOffload_{kind}"].GET_NODE_INFO_V1()
    given: dict[str, Any] = info["input"]["optional"]
    return given
