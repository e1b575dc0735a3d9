"""The uses of a model that are to come, counted while core's own executor runs the prompt."""

from __future__ import annotations

import sys
from typing import Any

import models
import pytest
from graphs import Graph, Prompt, node, register


class OneClip:
    """A loader of a small text encoder."""

    RETURN_TYPES = ("CLIP",)
    FUNCTION = "run"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}}

    def run(self) -> tuple[Any]:
        return (models.FAMILIES["clip"].make(),)


class UseClip:
    """A node that uses a text encoder, and notes how many uses are expected by then."""

    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "run"
    CATEGORY = "test"
    expected: list[int] = []  # noqa: RUF012 — the node's class is the only thing that outlives a run

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"clip": ("CLIP",), "text": ("STRING", {"forceInput": True})}}

    def run(self, clip: Any, text: str) -> tuple[str]:
        adapter = sys.modules[f"{register().__name__}.offload_runtime.adapter.record"]
        policy = sys.modules[f"{register().__name__}.offload_runtime.policy.rounds"]
        rounds = adapter.record_of(clip.patcher.model).rounds
        rounds.begin(policy.PAGED)
        self.expected.append(rounds.left)
        return (text,)


@pytest.fixture
def graph() -> Graph:
    import nodes as core

    register()
    core.NODE_CLASS_MAPPINGS.update({"OneClip": OneClip, "UseClip": UseClip})
    return Graph()


def uses(graph: Graph, prompt_id: str, *texts: str) -> list[int]:
    """Run a prompt of as many nodes as there are texts; return what each use expected."""
    UseClip.expected.clear()
    prompt: Prompt = {
        "1": {"class_type": "OneClip", "inputs": {}},
        "2": node("PlacementPolicy", vae="cpu"),
        "3": node("Loader", clip=["1", 0], policy=["2", 0]),
    }
    for index, text in enumerate(texts):
        prompt[f"text {index}"] = node("Text", texts=text)
        inputs = {"clip": ["3", 1], "text": [f"text {index}", 0]}
        prompt[f"use {index}"] = {"class_type": "UseClip", "inputs": inputs}
        prompt[f"sink {index}"] = node("Sink", value=[f"use {index}", 0])
    graph.run(prompt, prompt_id)
    return list(UseClip.expected)


def test_nodes_that_are_going_to_run_are_expected_and_those_with_a_result_are_not(graph: Graph) -> None:
    assert uses(graph, "a", "cat", "dog") == [2, 1]
    assert uses(graph, "b", "tree", "dog") == [1]
    assert uses(graph, "c", "house", "dog") == [1]
    assert uses(graph, "d", "sea", "sun") == [2, 1]
    assert uses(graph, "e", "sea", "sun", "moon") == [1]


def test_a_node_that_runs_once_for_each_of_a_list_is_known_from_its_last_run(graph: Graph) -> None:
    assert uses(graph, "a", "1|2|3") == [1, 2, 3]
    assert uses(graph, "b", "4|5|6") == [3, 2, 1]
