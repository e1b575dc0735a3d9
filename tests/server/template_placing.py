"""Put this pack's loaders behind all loaders of a prompt."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from offload_runtime.policy import is_link, upstream
from scripts.comfy_client import Prompt
from tests.server.template_files import Stubs

ObjectInfo = dict[str, Any]
PLACERS = ("LayerwiseOffload_Loader", "LayerwiseOffload_OtherModels")


class Source(NamedTuple):
    """An output with weights, and which of our inputs it was put through."""

    node: str
    slot: int
    placer: str
    socket: str


class Socket(NamedTuple):
    """What of ours takes a type."""

    placer: str
    name: str
    slot: int


def sockets(object_info: ObjectInfo) -> dict[str, Socket]:
    """Type → our node that takes it, the name of its input, and the place of its output."""
    found = {}
    for placer in PLACERS:
        outputs = object_info[placer]["output"] if placer in object_info else []
        for name, config in object_info[placer]["input"]["optional"].items() if outputs else ():
            if config[0] in outputs and config[0] != "LAYERWISE_PLACEMENTS":
                found[config[0]] = Socket(placer, name, outputs.index(config[0]))
    return found


def place(prompt: Prompt, object_info: ObjectInfo) -> tuple[Prompt, list[Source]]:
    """Return the prompt with everything placed, and what was; the prompt itself stays as it is."""
    takes = sockets(object_info)
    placed, sources, last = copy.deepcopy(prompt), [], None
    for node in sorted(prompt, key=lambda name: len(list(upstream(prompt, [name, 0])))):
        info = object_info[prompt[node]["class_type"]]
        for slot, kind in enumerate(info["output"]):
            if kind not in takes or not _read(prompt, node, slot) or _hands_on(info, kind):
                continue
            socket = takes[kind]
            ours = f"{node}-{slot}-placed"
            inputs = {socket.name: [node, slot], **({"placements": last} if last else {})}
            _rewire(placed, [node, slot], [ours, socket.slot])
            placed[ours] = {"class_type": socket.placer, "inputs": inputs, "_meta": {"title": "Placed"}}
            last = [ours, len(object_info[socket.placer]["output"]) - 1]
            sources.append(Source(node, slot, ours, socket.name))
    return placed, sources


def left_out(prompt: Prompt, object_info: ObjectInfo, stubs: Stubs) -> set[str]:
    """Return the types of what loaders load, and somebody uses, that none of ours takes."""
    takes = sockets(object_info)
    return {
        kind
        for node, made in prompt.items()
        for slot, kind in enumerate(object_info[made["class_type"]]["output"])
        if kind not in takes and stubs.named(made) and _read(prompt, node, slot)
    }


def _hands_on(info: dict[str, Any], kind: str) -> bool:
    """Whether a node works on what somebody else has loaded."""
    return any(config[0] == kind for group in info["input"].values() for config in group.values())


def _read(prompt: Prompt, node: str, slot: int) -> bool:
    return any(
        is_link(value) and value == [node, slot] for n in prompt.values() for value in n["inputs"].values()
    )


def _rewire(prompt: Prompt, before: list[Any], after: list[Any]) -> None:
    for node in prompt.values():
        for name, value in node["inputs"].items():
            if value == before:
                node["inputs"][name] = after
