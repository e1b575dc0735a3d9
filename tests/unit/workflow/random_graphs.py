"""Random graphs in both formats: loaders, what works on their outputs, what uses them, and subgraphs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from offload_runtime.workflow import NodeTypes

TYPES = {
    "CheckpointLoaderSimple": NodeTypes(("MODEL", "CLIP", "VAE"), frozenset({"STRING"}), False),
    "UNETLoader": NodeTypes(("MODEL",), frozenset(), False),
    "CLIPLoader": NodeTypes(("CLIP",), frozenset(), False),
    "VAELoader": NodeTypes(("VAE",), frozenset(), False),
    "CLIPVisionLoader": NodeTypes(("CLIP_VISION",), frozenset(), False),
    "ControlNetLoader": NodeTypes(("CONTROL_NET",), frozenset(), False),
    "UpscaleModelLoader": NodeTypes(("UPSCALE_MODEL",), frozenset(), False),
    "ControlNetOfModel": NodeTypes(("CONTROL_NET",), frozenset({"MODEL"}), False),
    "VAEFromModel": NodeTypes(("VAE",), frozenset({"MODEL"}), False),
    "LoraLoader": NodeTypes(("MODEL", "CLIP"), frozenset({"MODEL", "CLIP"}), False),
    "CLIPSetLastLayer": NodeTypes(("CLIP",), frozenset({"CLIP"}), False),
    "SetUnionControlNetType": NodeTypes(("CONTROL_NET",), frozenset({"CONTROL_NET"}), False),
    "Encode": NodeTypes(("CONDITIONING",), frozenset({"CLIP", "CLIP_VISION", "CONTROL_NET"}), False),
    "Sample": NodeTypes(("LATENT",), frozenset({"MODEL", "CONDITIONING"}), False),
    "Upscale": NodeTypes(("IMAGE",), frozenset({"UPSCALE_MODEL", "IMAGE"}), False),
    "Decode": NodeTypes(("IMAGE",), frozenset({"VAE", "LATENT"}), False),
    "Save": NodeTypes((), frozenset({"IMAGE", "LATENT", "CONDITIONING"}), True),
}
"""Kinds of nodes; what each takes may be linked, and each may be missing."""

FILES = {kind: "m.safetensors" for kind in TYPES if "Loader" in kind}


@st.composite
def prompts(draw: st.DrawFn) -> dict[str, Any]:
    """An API prompt whose links go to earlier nodes."""
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=9))
    prompt: dict[str, Any] = {}
    for number, kind in enumerate(kinds):
        inputs: dict[str, Any] = {"name": FILES[kind]} if kind in FILES else {"strength": 1.0}
        for wanted in sorted(TYPES[kind].takes):
            for place in range(draw(st.integers(0, 2))):
                there = [
                    [name, slot]
                    for name, node in prompt.items()
                    for slot, out in enumerate(TYPES[node["class_type"]].outputs)
                    if out == wanted
                ]
                if there:
                    inputs[f"{wanted}_{place}"] = list(draw(st.sampled_from(there)))
        prompt[str(number + 1)] = {"class_type": kind, "inputs": inputs, "_meta": {"title": kind}}
    return prompt


def as_workflow(prompt: dict[str, Any], modes: list[int] | None = None, way: str = "list") -> dict[str, Any]:
    """The same graph as the interface keeps it; links as lists, or as objects as inside of subgraphs."""
    nodes: list[dict[str, Any]] = []
    links: list[Any] = []
    for number, (name, node) in enumerate(prompt.items()):
        kind = node["class_type"]
        values = [value for value in node["inputs"].values() if not isinstance(value, list)]
        nodes.append(
            {
                "id": int(name),
                "type": kind,
                "pos": [300 * number, 100],
                "size": [240, 120],
                "order": number,
                "mode": modes[number % len(modes)] if modes else 0,
                "inputs": [],
                "outputs": [{"name": out, "type": out, "links": None} for out in TYPES[kind].outputs],
                "properties": {"Node name for S&R": kind},
                "widgets_values": values,
            }
        )
    by_id = {str(node["id"]): node for node in nodes}
    for name, node in prompt.items():
        for key, value in node["inputs"].items():
            if not isinstance(value, list):
                continue
            output = by_id[value[0]]["outputs"][value[1]]
            add_link(links, way, by_id[value[0]]["id"], value[1], by_id[name], key, output)
    return {"last_node_id": len(nodes), "last_link_id": len(links), "nodes": nodes, "links": links}


def add_link(
    links: list[Any],
    way: str,
    origin: Any,
    slot: int,
    target: dict[str, Any],
    name: str,
    output: dict[str, Any],
) -> None:
    """Wire an output to a new input of a node."""
    number, place = len(links) + 1, len(target["inputs"])
    target["inputs"].append({"name": name, "type": output["type"], "link": number})
    output["links"] = [*(output["links"] or []), number]
    ends = [number, origin, slot, target["id"], place, output["type"]]
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    links.append(ends if way == "list" else dict(zip(names, ends, strict=True)))


@st.composite
def workflows(draw: st.DrawFn) -> dict[str, Any]:
    """A workflow file, some nodes off, perhaps with a subgraph that takes in and hands out models."""
    modes = draw(st.lists(st.sampled_from([0, 0, 0, 2, 4]), min_size=1, max_size=5))
    outer = as_workflow(draw(prompts()), modes)
    if draw(st.booleans()):
        inner = as_workflow(draw(prompts()), draw(st.sampled_from([None, modes])), "object")
        outer["definitions"] = {"subgraphs": [_folded(draw, outer, inner)]}
    return outer


def _folded(draw: st.DrawFn, outer: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """Make a definition of the inner graph, with a node for it in the outer one, wired where types fit."""
    definition: dict[str, Any] = {
        "id": "b5a1c0de-0000-4000-8000-000000000001",
        "name": "inner",
        "inputs": [],
        "outputs": [],
        "nodes": inner["nodes"],
        "links": inner["links"],
        "state": {"lastNodeId": inner["last_node_id"], "lastLinkId": inner["last_link_id"]},
    }
    node: dict[str, Any] = {
        "id": 1 + max(one["id"] for one in outer["nodes"]),
        "type": definition["id"],
        "pos": [0, 400],
        "size": [240, 120],
        "order": 99,
        "mode": 0,
        "inputs": [],
        "outputs": [],
        "properties": {},
    }
    for origin in inner["nodes"]:
        for slot, output in enumerate(origin["outputs"]):
            if draw(st.booleans()):
                _hand_out(definition, node, origin, slot, output)
    for origin in outer["nodes"]:
        for slot, output in enumerate(origin["outputs"]):
            target = draw(st.sampled_from([None, *inner["nodes"]]))
            if target is not None and output["type"] in TYPES[target["type"]].takes:
                _hand_in(definition, outer, node, (origin, slot), target)
    outer["nodes"].append(node)
    return definition


def _hand_out(
    definition: dict[str, Any],
    node: dict[str, Any],
    origin: dict[str, Any],
    slot: int,
    output: dict[str, Any],
) -> None:
    number = len(definition["links"]) + 1
    place = len(definition["outputs"])
    definition["links"].append(
        {
            "id": number,
            "origin_id": origin["id"],
            "origin_slot": slot,
            "target_id": -20,
            "target_slot": place,
            "type": output["type"],
        }
    )
    output["links"] = [*(output["links"] or []), number]
    definition["outputs"].append({"name": f"out_{place}", "type": output["type"], "linkIds": [number]})
    node["outputs"].append({"name": f"out_{place}", "type": output["type"], "links": None})


def _hand_in(
    definition: dict[str, Any],
    outer: dict[str, Any],
    node: dict[str, Any],
    source: tuple[dict[str, Any], int],
    target: dict[str, Any],
) -> None:
    origin, slot = source
    name = f"in_{len(definition['inputs'])}"
    output = origin["outputs"][slot]
    inner_output = {"type": output["type"], "links": None}
    place = len(definition["inputs"])
    add_link(definition["links"], "object", -10, place, target, name, inner_output)
    definition["inputs"].append({"name": name, "type": output["type"], "linkIds": inner_output["links"]})
    add_link(outer["links"], "list", origin["id"], slot, node, name, output)
