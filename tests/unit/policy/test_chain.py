"""A policy as nodes decides what it decides as a file."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from strategies import NAMES, policies

from offload_runtime.policy import Policy, Source, SourceKind, as_chain
from offload_runtime.policy.files import parse_policy
from offload_runtime.policy.settings import WORKFLOW_SETTINGS, Setting

WIDGETS = ("text_encoder", "image_encoder", "vae", "dit")
FILE = Source(SourceKind.FILE, "file")


def as_nodes(policy: Policy) -> Policy:
    """Build the policy again as the nodes of its chain do."""
    chain = as_chain(policy, WIDGETS)
    node = Policy.from_widgets(
        Source(SourceKind.NODE, "node 1"), **chain.workflow, placements=chain.placements
    )
    overrides = [
        Policy.for_component(Source(SourceKind.OVERRIDE, f"node {i}"), **values)
        for i, values in enumerate(chain.overrides, 2)
    ]
    return node.extended(*overrides)


def decided(policy: Policy) -> dict[str, Any]:
    """What counts for the workflow and for every component."""
    explicit = policy.explicit
    asked = [(setting, "all") for setting in WORKFLOW_SETTINGS]
    asked += [(s, name) for s in Setting if s not in WORKFLOW_SETTINGS for name in NAMES]
    return {
        f"{setting} {name}": winner.value
        for setting, name in asked
        if (winner := explicit.winner(setting, name))
    }


@given(policies(strict=True))
def test_a_chain_of_nodes_decides_every_component_as_the_file_does(policy: Policy) -> None:
    file = policy.flattened(FILE)
    assert decided(as_nodes(file)) == decided(file)


@given(policies(strict=True))
def test_a_chain_read_back_gives_the_same_chain(policy: Policy) -> None:
    assert as_chain(as_nodes(policy), WIDGETS) == as_chain(policy.flattened(FILE), WIDGETS)


def chain_of(text: str) -> Any:
    return as_chain(parse_policy(text, FILE), WIDGETS)


def test_what_the_policy_node_can_say_needs_no_override() -> None:
    chain = chain_of("{mode: memory, strict: on, vram_budget: 6GB, components: {'dit, vae': resident}}")
    assert chain.workflow == {"mode": "memory", "strict": "on", "vram_budget": "6GB"}
    assert chain.placements == {"dit": "resident", "vae": "resident"}
    assert chain.overrides == ()


def test_a_numbered_component_and_a_budget_are_overrides_and_the_placement_stays_in_the_policy_node() -> None:
    chain = chain_of(
        "{components: {text_encoder_2: cpu, text_encoder: {placement: layerwise, vram_budget: 1GB, device: 1}}}"
    )
    assert chain.placements == {"text_encoder": "layerwise"}
    assert chain.overrides == (
        {"component": "text_encoder", "vram_budget": "1GB", "device": "gpu:1"},
        {"component": "text_encoder_2", "placement": "cpu"},
    )


def test_a_placement_under_a_wider_one_is_an_override_behind_it() -> None:
    chain = chain_of("{components: {vae: resident, all: offload, default: layerwise}}")
    assert chain.placements == {}
    assert [o["component"] for o in chain.overrides] == ["all", "default", "vae"]
