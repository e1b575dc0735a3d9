"""From the UI's workflow format to the API's, and from there to the plain graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offload_runtime.policy import OTHERS
from scripts import workflow
from scripts.problem import Problem

OBJECT_INFO: dict[str, Any] = {
    "Loader": {
        "display_name": "Load It",
        "input": {"required": {"file": [["a", "b"], {}]}, "optional": {"device": ["COMBO", {}]}},
    },
    "Sampler": {
        "input": {
            "required": {
                "model": ["MODEL", {}],
                "seed": ["INT", {"control_after_generate": True}],
                "steps": ["INT", {}],
                "note": ["STRING", {"forceInput": True}],
            },
            "optional": {"cfg": ["FLOAT", {}]},
            "hidden": {"unique_id": "UNIQUE_ID"},
        }
    },
    "OldSeed": {"input": {"required": {"noise_seed": ["INT"], "steps": ["INT", {}]}}},
    "Patch": {"input": {"required": {"strength": ["FLOAT", {}], "model": ["MODEL", {}]}}},
    "Resize": {
        "input": {
            "required": {
                "images": [
                    "COMFY_AUTOGROW_V3",
                    {"template": {"input": {"required": {"image": ["IMAGE", {}]}}}},
                ],
                "resize": [
                    "COMFY_DYNAMICCOMBO_V3",
                    {
                        "options": [
                            {"key": "whole", "inputs": {}},
                            {
                                "key": "by seed",
                                "inputs": {
                                    "required": {
                                        "seed": ["INT", {}],
                                        "mask": ["MASK", {}],
                                        "then": [
                                            "COMFY_DYNAMICCOMBO_V3",
                                            {
                                                "options": [
                                                    {
                                                        "key": "crop",
                                                        "inputs": {"required": {"at": ["INT", {}]}},
                                                    }
                                                ]
                                            },
                                        ],
                                    },
                                    "optional": {"fill": ["COLOR", {"socketless": True}]},
                                },
                            },
                        ]
                    },
                ],
                "method": ["COMBO", {"options": ["area", "lanczos"]}],
                "region": ["BOUNDING_BOX", {"socketless": True}],
                "shown": ["FLOAT,INT", {"widgetType": "FLOAT", "default": 25.0}],
            }
        }
    },
    "Save": {"input": {"required": {"images": ["IMAGE", {}], "prefix": ["STRING", {}]}}},
}


class Canvas:
    """Builds UI workflows the way the frontend saves them."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.links: list[list[Any]] = []

    def node(self, kind: str, widgets: Any = (), outputs: str = "", **more: Any) -> int:
        node_id = len(self.nodes) + 1
        sockets = [{"name": kind, "type": kind, "links": []} for kind in outputs.split()]
        self.nodes.append(
            {"id": node_id, "type": kind, "inputs": [], "outputs": sockets, "widgets_values": widgets, **more}
        )
        return node_id

    def link(self, origin: int, slot: int, target: int, name: str, kind: str = "MODEL") -> None:
        link_id = len(self.links) + 1
        inputs = self.nodes[target - 1]["inputs"]
        self.links.append([link_id, origin, slot, target, len(inputs), kind])
        inputs.append({"name": name, "type": kind, "link": link_id})

    def to_api(self) -> workflow.Prompt:
        return workflow.to_api({"nodes": self.nodes, "links": self.links}, OBJECT_INFO)


@pytest.fixture
def canvas() -> Canvas:
    return Canvas()


def test_widget_values_go_to_their_inputs_and_control_values_to_none(canvas: Canvas) -> None:
    canvas.node("Sampler", [11, "randomize", 20, 4.5])
    assert canvas.to_api()["1"]["inputs"] == {"seed": 11, "steps": 20, "cfg": 4.5}


def test_a_seed_has_a_control_value_even_where_the_node_does_not_ask_for_one(canvas: Canvas) -> None:
    canvas.node("OldSeed", [3, "fixed", 9])
    assert canvas.to_api()["1"]["inputs"] == {"noise_seed": 3, "steps": 9}


def test_values_go_by_name_where_another_version_of_the_node_saved_them(canvas: Canvas) -> None:
    by_name = {workflow.VALUES_BY_NAME: {"gone": "x", "file": "b"}}
    canvas.node("Loader", ["x", "b"], properties=by_name)
    assert canvas.to_api()["1"]["inputs"] == {"file": "b"}


def test_a_value_that_was_changed_in_its_place_counts(canvas: Canvas) -> None:
    by_name = {workflow.VALUES_BY_NAME: {"file": "a", "device": "cpu"}}
    canvas.node("Loader", ["b", "cpu"], properties=by_name)
    assert canvas.to_api()["1"]["inputs"] == {"file": "b", "device": "cpu"}


def test_a_workflow_older_than_an_input_simply_lacks_it(canvas: Canvas) -> None:
    canvas.node("Loader", ["a"])
    assert canvas.to_api()["1"]["inputs"] == {"file": "a"}


def test_a_value_that_the_file_lacks_is_what_the_node_begins_with(canvas: Canvas) -> None:
    canvas.node("Resize", ["whole"])
    inputs = canvas.to_api()["1"]["inputs"]
    assert inputs == {"resize": "whole", "method": "area", "shown": 25.0}


def test_a_choice_has_the_inputs_that_it_brings_right_behind_it(canvas: Canvas) -> None:
    box = {"x": 0, "y": 0, "width": 8, "height": 8}
    canvas.node("Resize", ["by seed", 7, "fixed", "crop", 3, "#fff", "lanczos", box, 0, 0, 8, 8, 24])
    assert canvas.to_api()["1"]["inputs"] == {
        "resize": "by seed",
        "resize.seed": 7,
        "resize.then": "crop",
        "resize.then.at": 3,
        "resize.fill": "#fff",
        "method": "lanczos",
        "region": box,
        "shown": 24,
    }


def test_what_a_choice_brings_and_what_grows_are_wired_by_name(canvas: Canvas) -> None:
    source = canvas.node("OldSeed", [1, "fixed", 2], outputs="IMAGE")
    target = canvas.node("Resize", ["by seed", 7, "fixed", "crop", 3, "#fff", "lanczos"])
    for name in ("images.image0", "images.image1", "resize.seed"):
        canvas.link(source, 0, target, name, "IMAGE")
    inputs = canvas.to_api()["2"]["inputs"]
    assert [inputs[name] for name in ("images.image0", "images.image1", "resize.seed")] == [["1", 0]] * 3


def test_widget_values_by_name_are_understood(canvas: Canvas) -> None:
    canvas.node("Loader", {"file": "b", "videopreview": {}})
    assert canvas.to_api()["1"]["inputs"] == {"file": "b"}


def test_a_list_value_is_wrapped_so_that_it_is_no_link(canvas: Canvas) -> None:
    canvas.node("Loader", [["a", 1]])
    assert canvas.to_api()["1"]["inputs"]["file"] == {"__value__": ["a", 1]}


def test_the_title_is_the_persons_or_else_the_display_name(canvas: Canvas) -> None:
    canvas.node("Loader", ["a"])
    canvas.node("Loader", ["a"], title="My model")
    assert [node["_meta"]["title"] for node in canvas.to_api().values()] == ["Load It", "My model"]


def test_a_link_wins_over_the_widget_under_it(canvas: Canvas) -> None:
    source = canvas.node("OldSeed", [1, "fixed", 2], outputs="INT")
    target = canvas.node("Sampler", [5, "fixed", 20, 1.0])
    canvas.link(source, 0, target, "steps", "INT")
    assert canvas.to_api()["2"]["inputs"] == {"seed": 5, "steps": ["1", 0], "cfg": 1.0}


def test_notes_reroutes_and_primitives_are_not_queued(canvas: Canvas) -> None:
    loader = canvas.node("Loader", ["a"], outputs="MODEL")
    reroute = canvas.node("Reroute", outputs="*")
    sampler = canvas.node("Sampler", [1, "fixed", 2, 3.0])
    number = canvas.node("PrimitiveNode", [77, "fixed"], outputs="INT")
    canvas.node("Note", ["hello"])
    canvas.node("MarkdownNote", ["# hello"])
    canvas.link(loader, 0, reroute, "", "*")
    canvas.link(reroute, 0, sampler, "model")
    canvas.link(number, 0, sampler, "steps", "INT")
    prompt = canvas.to_api()
    assert set(prompt) == {"1", "3"}
    assert prompt["3"]["inputs"]["model"] == ["1", 0]
    assert prompt["3"]["inputs"]["steps"] == 77


def test_a_bypassed_node_hands_on_the_input_of_the_same_type(canvas: Canvas) -> None:
    loader = canvas.node("Loader", ["a"], outputs="MODEL")
    patch = canvas.node("Patch", [0.5], outputs="MODEL", mode=workflow.BYPASSED)
    sampler = canvas.node("Sampler", [1, "fixed", 2, 3.0])
    canvas.nodes[patch - 1]["inputs"].append({"name": "strength", "type": "FLOAT", "link": None})
    canvas.link(loader, 0, patch, "model")
    canvas.link(patch, 0, sampler, "model")
    prompt = canvas.to_api()
    assert set(prompt) == {"1", "3"}
    assert prompt["3"]["inputs"]["model"] == ["1", 0]


def test_a_muted_node_leaves_its_readers_without_that_input(canvas: Canvas) -> None:
    loader = canvas.node("Loader", ["a"], outputs="MODEL", mode=workflow.MUTED)
    sampler = canvas.node("Sampler", [1, "fixed", 2, 3.0])
    canvas.link(loader, 0, sampler, "model")
    assert "model" not in canvas.to_api()["2"]["inputs"]


def test_links_saved_as_objects_are_understood(canvas: Canvas) -> None:
    loader = canvas.node("Loader", ["a"], outputs="MODEL")
    sampler = canvas.node("Sampler", [1, "fixed", 2, 3.0])
    canvas.link(loader, 0, sampler, "model")
    canvas.links = [{"id": 1, "origin_id": loader, "origin_slot": 0, "target_id": sampler, "target_slot": 0}]
    assert canvas.to_api()["2"]["inputs"]["model"] == ["1", 0]


def test_an_unknown_node_type_is_named(canvas: Canvas) -> None:
    canvas.node("Mystery")
    with pytest.raises(Problem, match="node 1 has the type Mystery"):
        canvas.to_api()


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs, "_meta": {"title": kind}}


def test_the_plain_graph_joins_what_the_loaders_stood_between() -> None:
    prompt = {
        "1": node("UNETLoader"),
        "2": node("CLIPLoader"),
        "3": node("LayerwiseOffload_PlacementPolicy", mode="auto"),
        "4": node("LayerwiseOffload_Loader", model=["1", 0], clip=["2", 0], policy=["3", 0]),
        "5": node("LayerwiseOffload_Loader", model=["4", 0], clip=["4", 1], placements=["4", 4]),
        "6": node("KSampler", model=["5", 0], positive=["7", 0], seed=1),
        "7": node("CLIPTextEncode", clip=["5", 1]),
        "8": node("LayerwiseOffload_PlacementReport", placements=["5", 4], after=["6", 0]),
    }
    assert workflow.without_pack(prompt) == {
        "1": node("UNETLoader"),
        "2": node("CLIPLoader"),
        "6": node("KSampler", model=["1", 0], positive=["7", 0], seed=1),
        "7": node("CLIPTextEncode", clip=["2", 0]),
    }


def test_what_only_reads_the_packs_own_outputs_goes_with_it() -> None:
    prompt = {
        "1": node("LayerwiseOffload_PlacementReport"),
        "2": node("PreviewAny", source=["1", 0]),
        "3": node("Join", text=["2", 0]),
        "4": node("EmptyImage", width=8),
    }
    assert set(workflow.without_pack(prompt)) == {"4"}


def test_a_loaders_output_without_an_input_takes_its_reader_along() -> None:
    prompt = {"1": node("LayerwiseOffload_Loader"), "2": node("KSampler", model=["1", 0])}
    assert workflow.without_pack(prompt) == {}


def test_both_loaders_hand_on_what_their_sockets_take_and_policies_name_it() -> None:
    file = Path(__file__).parents[1] / "server" / "fixtures" / "node_schemas.json"
    schemas = json.loads(file.read_text(encoding="utf-8"))
    for loader, names in workflow.PASSES_ON.items():
        sockets = [(name, kind) for name, kind, _ in schemas[loader]["optional"] if kind == name.upper()]
        outputs = [(name.lower(), kind) for name, kind in schemas[loader]["outputs"]]
        assert [name for name, _ in sockets[: len(names)]] == list(names)
        assert outputs[: len(names)] == sockets[: len(names)]
    assert workflow.PASSES_ON["LayerwiseOffload_OtherModels"] == OTHERS


def test_the_original_prompt_is_left_alone() -> None:
    prompt = {
        "1": node("UNETLoader"),
        "2": node("LayerwiseOffload_Loader", model=["1", 0]),
        "3": node("K", model=["2", 0]),
    }
    before = json.dumps(prompt)
    workflow.without_pack(prompt)
    assert json.dumps(prompt) == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "neither a workflow nor an API prompt"),
        ("{}", "neither a workflow nor an API prompt"),
        ('{"1": {"inputs": {}}}', "neither a workflow nor an API prompt"),
    ],
)
def test_a_file_that_is_no_workflow_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "workflow.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(Problem, match=sentence):
        workflow.load(file, OBJECT_INFO)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"gone\.json cannot be read: No such file"):
        workflow.load(tmp_path / "gone.json", OBJECT_INFO)


def test_an_api_prompt_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "api.json"
    file.write_text(json.dumps({"1": node("Loader", file="a")}), encoding="utf-8")
    assert workflow.load(file, OBJECT_INFO) == {"1": node("Loader", file="a")}
