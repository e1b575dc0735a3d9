"""What a run tells the browser about the policy nodes: which of them took part, and what came of their values.

It travels in the executed output, so that it is there for cached nodes and for history entries too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..offload_runtime.policy import WORKFLOW_SETTINGS, Policy, spell_value, upstream

if TYPE_CHECKING:
    from ..offload_runtime.adapter import Placements
    from ..offload_runtime.policy import PlacementRow

LOADER = "LayerwiseOffload_Loader"
MODEL_LOADERS = {
    "CLIPLoader": "LayerwiseOffload_LoadCLIP",
    "DualCLIPLoader": "LayerwiseOffload_LoadDualCLIP",
    "VAELoader": "LayerwiseOffload_LoadVAE",
    "CLIPVisionLoader": "LayerwiseOffload_LoadCLIPVision",
    "UNETLoader": "LayerwiseOffload_LoadDiffusionModel",
    "CheckpointLoaderSimple": "LayerwiseOffload_LoadCheckpoint",
}
"""ComfyUI's loaders → those of the pack that load the same and place it."""
OTHER_MODELS = "LayerwiseOffload_OtherModels"
LOADERS = (LOADER, OTHER_MODELS, *MODEL_LOADERS.values())
"""The nodes that place."""
POLICY = "LayerwiseOffload_PlacementPolicy"
POLICY_NODES = (
    POLICY,
    "LayerwiseOffload_SetPlacement",
    "LayerwiseOffload_LoadPolicy",
)

Graph = Mapping[str, Mapping[str, Any]]


def policy_nodes(graph: Graph, loader: str) -> list[str]:
    """Return the policy nodes whose values reach a loader, through whatever nodes stand between."""
    return sorted(
        n for n in upstream(graph, _input(graph, loader, "policy")) if graph[n]["class_type"] in POLICY_NODES
    )


def common_policy_nodes(graph: Graph, report: str) -> list[str]:
    """Return the policy nodes of all loaders in front of a report, or none where the loaders have different ones."""
    before = upstream(graph, _input(graph, report, "placements"))
    chains = [policy_nodes(graph, node) for node in before if graph[node]["class_type"] in LOADERS]
    return chains[0] if chains and all(chain == chains[0] for chain in chains) else []


def decided_here(
    graph: Graph, loader: str, asked: Policy, placements: Placements, count: int
) -> dict[str, Any]:
    """Return what came of the values of the policy nodes in front of a loader, which has placed the last components."""
    from ..offload_runtime.policy import PlacementRow  # no start pays for it

    rows = [PlacementRow.of(p.facts, p.decision) for p in placements.placed[len(placements.placed) - count :]]
    return decisions(graph, policy_nodes(graph, loader), [asked], rows)


def decisions(
    graph: Graph, nodes: list[str], policies: Iterable[Policy], rows: Iterable[PlacementRow]
) -> dict[str, Any]:
    """Return what came of the values of some policy nodes, as plain JSON values.

    The values that the nodes ran with are told too, and which nodes there were: a browser that shows other ones by now
    knows that the answer is not theirs.

    Args:
        graph: the prompt.
        nodes: the ids of the policy nodes in it.
        policies: the policies that were resolved.
        rows: the components that they were resolved for.
    """
    explicit = Policy().extended(*policies).explicit
    winners = {setting.key: explicit.winner(setting) for setting in WORKFLOW_SETTINGS}
    return {
        "policy_nodes": {
            node: {name: v for name, v in graph[node].get("inputs", {}).items() if not isinstance(v, list)}
            for node in nodes
            if graph[node]["class_type"] == POLICY
        },
        "chain": {
            node: {name: v for name, v in graph[node].get("inputs", {}).items() if not isinstance(v, list)}
            for node in nodes
        },
        "settings": {
            name: {"value": spell_value(won.setting, won.value), "asked_by": won.asked_by}
            for name, won in winners.items()
            if won is not None
        },
        "rows": [asdict(row) for row in rows],
    }


def _input(graph: Graph, node: str, name: str) -> Any:
    return graph[node].get("inputs", {}).get(name)
