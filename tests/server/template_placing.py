"""What placing makes of a template, and which types of models it leaves out."""

from __future__ import annotations

from typing import Any, NamedTuple

from offload_runtime.policy import is_link
from offload_runtime.workflow import PLACERS, of_object_info, placed_prompt, planned_prompt
from scripts.comfy_client import Prompt
from tests.server.template_files import Stubs

ObjectInfo = dict[str, Any]


class Source(NamedTuple):
    """An output with weights, and which of our inputs it was put through."""

    node: str
    slot: int
    placer: str
    socket: str


def place(prompt: Prompt, object_info: ObjectInfo) -> tuple[Prompt, list[Source]]:
    """Return the prompt with everything placed, and what was; the prompt itself stays as it is."""
    placed = placed_prompt(prompt, planned_prompt(prompt, of_object_info(object_info)), None)
    sources = [
        Source(*node["inputs"][socket], name, socket)
        for name, node in placed.items()
        for socket in PLACERS.get(node["class_type"], ())
        if socket in node["inputs"]
    ]
    return placed, sources


def left_out(prompt: Prompt, object_info: ObjectInfo, stubs: Stubs) -> set[str]:
    """Return the types of what loaders load, and somebody uses, that none of ours takes."""
    taken = {kind for sockets in PLACERS.values() for kind in sockets.values()}
    return {
        kind
        for node, made in prompt.items()
        for slot, kind in enumerate(object_info[made["class_type"]]["output"])
        if kind not in taken and stubs.named(made) and _read(prompt, node, slot)
    }


def _read(prompt: Prompt, node: str, slot: int) -> bool:
    return any(
        is_link(value) and value == [node, slot] for n in prompt.values() for value in n["inputs"].values()
    )
