"""Layerwise Offload Loader: applies a policy to the components of a workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import comfy.utils
from comfy_api.latest import io

from ..offload_runtime.errors import AttachError
from ..offload_runtime.policy import NOT_SAID, Policy, is_link, vae_use
from ..offload_runtime.policy.files import DEFAULT_FILE
from . import sockets
from .compat import known_options
from .executed import LOADER, decided_here
from .policy_files import fingerprint, policy_folder
from .prompt import expanded_from, prompt_graph
from .sockets import SOCKETS

if TYPE_CHECKING:
    from ..offload_runtime.adapter import Placements


class LoaderNode(io.ComfyNode):
    """Place the components that are connected, and hand them on in the same order."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Every input is optional: connect what is to be placed."""
        return known_options(
            io.Schema,
            node_id=LOADER,
            display_name="Layerwise Offload Loader",
            category=sockets.CATEGORY,
            description="Applies a placement policy to the models that go through it. Put it right behind the "
            "loaders, in front of LoRAs. The inputs stay as they are; the outputs are placed copies.",
            search_aliases=["low vram", "offload", "block swap", "layerwise", "stream", "vram"],
            inputs=[
                *sockets.placed_inputs(SOCKETS),
                *sockets.policy_inputs("Layerwise Offload Loader"),
            ],
            outputs=sockets.placed_outputs(SOCKETS),
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: Any) -> str:
        """Place again when the user's default policy has changed."""
        return fingerprint(DEFAULT_FILE)

    @classmethod
    def execute(
        cls,
        model: Any = None,
        clip: Any = None,
        vae: Any = None,
        clip_vision: Any = None,
        policy: Policy | None = None,
        placements: Placements | None = None,
    ) -> io.NodeOutput:
        """Clone, decide and attach."""
        given = dict(zip(SOCKETS, (model, clip, vae, clip_vision), strict=True))
        return place_connected(cls.hidden, given, policy, placements)


def place_connected(
    hidden: Any, given: Mapping[str, Any], policy: Policy | None, placements: Placements | None
) -> io.NodeOutput:
    """Place what is connected to a node.

    Args:
        hidden: the node's hidden inputs.
        given: socket → what came in by it, or None; in the order of the node's outputs.
        policy: what was asked for.
        placements: what an earlier loader of the chain has placed.
    """
    from ..offload_runtime.adapter import (  # no start pays for it
        Placements,
        Prompt,
        apply_policy,
        around,
        candidate_files,
    )

    objects = {slot: value for slot, value in given.items() if value is not None}
    prompt, node_id = hidden.dynprompt, hidden.unique_id
    graph = prompt_graph(prompt)
    _refuse_empty_outputs(graph, node_id, tuple(given), objects)
    whole = Prompt(graph, expanded_from(prompt))
    files = {slot: candidate_files(whole, node_id, slot, value) for slot, value in objects.items()}
    asked = policy_folder().user_default().extended(policy or Policy())
    earlier = placements or Placements()
    bar = comfy.utils.ProgressBar(len(objects))
    placed, all_placements = apply_policy(
        asked,
        objects,
        files,
        earlier,
        on_step=lambda: bar.update(1),
        vae_use=vae_use(graph, node_id, list(given).index("vae")) if "vae" in given else NOT_SAID,
        around=around(whole, node_id),
    )
    decided = decided_here(graph, node_id, asked, all_placements, len(objects))
    return io.NodeOutput(
        *(placed.get(slot) for slot in given), all_placements, ui={"placement_decisions": [decided]}
    )


def _refuse_empty_outputs(
    graph: Mapping[str, Any], node_id: str, slots: Sequence[str], objects: Mapping[str, Any]
) -> None:
    for other, node in graph.items():
        for value in node.get("inputs", {}).values():
            if not is_link(value) or str(value[0]) != node_id:
                continue
            slot = slots[value[1]] if value[1] < len(slots) else None
            if slot is not None and slot not in objects:
                raise AttachError(
                    f"node {other} ({node['class_type']}) uses the {slot.upper()} output of this Layerwise Offload "
                    f"Loader, but no {slot.upper()} came in; connect its {slot} input to a loader that has one"
                )
