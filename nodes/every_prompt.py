"""ComfyUI's setting *Apply my default policy to every workflow*: prompts are placed before they are checked.

Off by default. A prompt that has nodes of this pack is left alone, and so is one that cannot be placed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import folder_paths
from comfy.cli_args import args

from ..offload_runtime.log import information, warning
from .placing import class_types
from .running_server import running_server

if TYPE_CHECKING:
    from ..offload_runtime.workflow import Plan

SETTING = "LayerwiseOffload.Placement.EveryPrompt"
"""Its id in ComfyUI's settings; web/layerwise_offload.js shows it."""


def add_prompt_handler() -> None:
    """Have the running server hand prompts over; where there is none, nobody queues any."""
    running = running_server()
    if running is not None:
        running.add_on_prompt_handler(placed_if_wanted)


def placed_if_wanted(request: Any) -> Any:
    """Return the body of a queued prompt, placed where the person has the setting on."""
    try:
        return _placed(request) if _is_on() else request
    except Exception as error:  # whatever it is: the prompt runs as it came
        warning("this prompt is not placed, and runs as it is: %s: %s", type(error).__name__, error)
        return request


def _placed(request: Any) -> Any:
    from ..offload_runtime.workflow import PACK_PREFIX, placed_prompt, planned_prompt  # no start pays for it

    prompt = request.get("prompt")
    if not isinstance(prompt, dict) or any(_begins(node, PACK_PREFIX) for node in prompt.values()):
        return request
    targets = request.get("partial_execution_targets")
    ends = None if targets is None else frozenset(str(target) for target in targets)
    what = planned_prompt(prompt, class_types, ends)
    if not what.loaders:
        return request
    information(
        "the setting “Apply my default policy to every workflow” is on, and places this prompt: %s",
        _told(what),
    )
    return {**request, "prompt": placed_prompt(prompt, what, None)}


def _is_on() -> bool:
    """Read the setting of the person; with several, a prompt does not say whose it is."""
    if getattr(args, "multi_user", False):
        return False
    file = Path(folder_paths.get_user_directory()) / "default" / "comfy.settings.json"
    try:
        return json.loads(file.read_bytes()).get(SETTING) is True
    except FileNotFoundError:
        return False


def _begins(node: Any, prefix: str) -> bool:
    return isinstance(node, dict) and str(node.get("class_type")).startswith(prefix)


def _told(what: Plan) -> str:
    sources = [source for loader in what.loaders for source in loader.sources.values()]
    kinds = {node.id: node.kind for node in what.scope.nodes}
    nodes = dict.fromkeys(source.output.node for source in sources)
    return ", ".join(
        f"node {node} ({kinds[node]}): "
        + " ".join(s.socket.upper() for s in sources if s.output.node == node)
        for node in nodes
    )
