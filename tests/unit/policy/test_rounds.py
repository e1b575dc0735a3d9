"""How often a component is going to be used before others need its room, and what that is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload_runtime.policy.rounds import PAGED, Cost, History, Use, legacy_cost
from offload_runtime.policy.users import PromptNodes

COUNT = Cost(1, 0, 2, 2)


def graph(texts: Mapping[str, str], **more: Any) -> PromptNodes:
    """One loader, and a node for each text."""
    nodes = {name: encode(text) for name, text in texts.items()}
    return PromptNodes({"loader": {"class_type": "Loader", "inputs": {}}, **nodes, **more})


def encode(text: Any, clip: str = "loader", kind: str = "Encode") -> dict[str, Any]:
    return {"class_type": kind, "inputs": {"text": text, "clip": [clip, 1]}}


class Run:
    """A history that is told of prompts as ComfyUI runs them."""

    def __init__(self) -> None:
        self.history = History()
        self.prompts = 0

    def prompt(self, nodes: PromptNodes, runs: Iterable[str]) -> list[int]:
        """Run nodes in an order; `|` stands for another model that is loaded. Returns what each use expected."""
        self.prompts += 1
        expected, came = [], True
        for node in runs:
            if node == "|":
                came = True
                continue
            use = Use(came, f"prompt {self.prompts}", node, nodes, frozenset({"loader"}))
            self.history.begin(use, COUNT)
            expected.append(self.history.left)
            came = False
        return expected


# What is to come --------------------------------------------------------------------------------------


def test_all_users_of_a_new_prompt_are_to_come() -> None:
    assert Run().prompt(graph({"positive": "a cat", "negative": "dog"}), ["positive", "negative"]) == [2, 1]


def test_of_what_comfyui_has_the_result_nothing_is_to_come() -> None:
    run = Run()
    run.prompt(graph({"positive": "a cat", "negative": "dog"}), ["positive", "negative"])
    for text in ("a tree", "a house"):
        assert run.prompt(graph({"positive": text, "negative": "dog"}), ["positive"]) == [1]
    assert run.prompt(graph({"positive": "sea", "negative": "sun"}), ["negative", "positive"]) == [2, 1]
    assert run.prompt(graph({"positive": "sea", "negative": "rain"}), ["negative"]) == [1]


def test_a_result_counts_until_its_node_has_left_the_prompt() -> None:
    run = Run()
    run.prompt(graph({"positive": "a cat", "negative": "dog"}), ["positive", "negative"])
    run.prompt(graph({"positive": "a tree", "negative": "sun"}), ["positive", "negative"])
    assert run.prompt(graph({"positive": "a cat", "negative": "dog"}), ["positive", "negative"]) == [2, 1]


def test_what_is_before_a_user_counts() -> None:
    run = Run()

    def nodes(strength: float) -> PromptNodes:
        lora = {"class_type": "Lora", "inputs": {"clip": ["loader", 1], "strength": strength}}
        texts = {"positive": encode("a cat", "lora"), "negative": encode("dog")}
        return PromptNodes({"loader": {"class_type": "Loader", "inputs": {}}, "lora": lora, **texts})

    run.prompt(nodes(1), ["positive", "negative"])
    assert run.prompt(nodes(0.5), ["positive"]) == [1]


def test_users_of_another_loader_are_not_to_come() -> None:
    second = {"class_type": "Loader", "inputs": {"placements": ["loader", 4]}}
    nodes = graph({"positive": "a"}, second=second, other=encode("b", "second"))
    assert Run().prompt(nodes, ["positive"]) == [1]


def test_a_node_uses_the_model_as_often_as_last_time() -> None:
    run = Run()
    assert run.prompt(graph({"regions": "a"}), ["regions"] * 4) == [1, 2, 3, 4]
    assert run.prompt(graph({"regions": "b"}), ["regions"] * 4) == [4, 3, 2, 1]
    assert run.prompt(graph({"regions": "c", "more": "d"}), ["regions"] * 4)[0] == 8
    assert run.prompt(graph({"regions": "e"}), ["regions"] * 2) == [4, 3]
    assert run.prompt(graph({"regions": "f"}), ["regions"]) == [2]


def test_a_class_that_was_no_user_so_far_is_one_from_then_on() -> None:
    nodes = {"a": encode("x"), "b": encode("y", kind="EncodeFlux")}
    run = Run()
    assert run.prompt(graph({}, **nodes), ["a", "b"]) == [1, 1]
    nodes = {"a": encode("z"), "b": encode("w", kind="EncodeFlux")}
    assert run.prompt(graph({}, **nodes), ["a", "b"]) == [2, 1]


def test_of_two_nodes_that_are_the_same_one_runs() -> None:
    assert Run().prompt(graph({"positive": "", "negative": ""}), ["positive"]) == [1]


def test_where_results_are_not_kept_all_users_are_to_come() -> None:
    """As with --cache-none: known as soon as one runs that need not, and from then on."""
    run = Run()
    same = graph({"positive": "a cat", "negative": "dog", "third": "sun"})
    run.prompt(same, ["positive", "negative", "third"])
    assert run.prompt(same, ["positive", "negative", "third"]) == [3, 2, 1]
    texts = {"negative": "dog", "third": "sun"}
    assert run.prompt(graph({"positive": "a", **texts}), ["positive", "negative", "third"])[0] == 3


def test_a_class_that_has_to_run_every_time_is_to_come() -> None:
    run = Run()
    for times in range(2):
        wild = {**encode("a|b"), "is_changed": [float("nan")]}
        nodes = graph({"positive": f"a cat {times}"}, wild=wild)
        assert run.prompt(nodes, ["positive", "wild"]) == ([2, 1])


def test_a_user_that_ran_after_others_last_time_is_in_a_later_round() -> None:
    run = Run()
    assert run.prompt(graph({"first": "a", "second": "b"}), ["first", "|", "second"]) == [2, 1]
    assert run.prompt(graph({"first": "c", "second": "d"}), ["first", "|", "second"]) == [1, 1]


def test_without_a_prompt_the_last_round_tells() -> None:
    history = History()
    expected = []
    for came in (True, False, False, True, False, False, True, True):
        history.begin(Use(came), COUNT)
        expected.append(history.left)
    assert expected == [1, 2, 3, 3, 2, 1, 3, 1]


def test_a_prompt_in_a_circle_or_with_a_missing_node_does_no_harm() -> None:
    nodes = PromptNodes({"a": encode("x", "b"), "b": encode("y", "a"), "c": encode("z", "gone")})
    assert Run().prompt(nodes, ["a"]) == [3]


def test_a_prompt_of_thousands_of_nodes_in_a_row_is_read_at_once() -> None:
    chain = {str(i): {"class_type": "Lora", "inputs": {"clip": [str(i - 1), 0]}} for i in range(1, 20_000)}
    nodes = PromptNodes({"0": {"class_type": "Loader"}, **chain, "text": encode("a", "19999")})
    assert nodes.users({"Encode"}, {"0"}) == ["text"]
    assert len(nodes.digest("text")) == 64


# What it is worth -------------------------------------------------------------------------------------


def test_once_taken_the_room_is_kept_until_others_come() -> None:
    history = History()
    takes = [history.begin(Use(came), COUNT) for came in (True, False, False, True, False, False)]
    assert takes == [False, True, True, True, True, True]
    assert [history.begin(Use(True), COUNT) for _ in range(2)] == [True, False]


def test_to_ask_notes_nothing() -> None:
    history = History()
    history.begin(Use(True), COUNT)
    assert [history.would_begin(Use(False), COUNT) for _ in range(3)] == [True] * 3
    assert not history.takes_room
    assert history.left == 1


sizes = st.integers(0, 10**11)


@settings(deadline=None, max_examples=50)
@given(uses=st.integers(1, 100))
def test_pages_take_the_room_from_two_uses_on(uses: int) -> None:
    """A byte that is streamed n times, against one that comes in once and costs another's way back, hidden or not."""
    assert PAGED.takes_room(uses) == (uses >= 2)


@settings(deadline=None, max_examples=50)
@given(
    uses=st.integers(1, 64), streamed=sizes, unpacked=sizes, moved=sizes, evicted=sizes, pinned=st.booleans()
)
def test_what_is_chosen_costs_the_least_and_more_uses_never_favour_streaming(
    uses: int, streamed: int, unpacked: int, moved: int, evicted: int, pinned: bool
) -> None:
    cost = legacy_cost(streamed=streamed, unpacked=unpacked, pinned=pinned, moved=moved, evicted=evicted)
    streaming = cost.first + uses * cost.use
    lasting = (
        uses * cost.use >= cost.again > 0
    )  # then later rounds take the room, and streaming once gains nothing
    chosen = cost.move if cost.takes_room(uses) else streaming
    assert lasting or chosen <= min(cost.move, streaming)
    assert cost.takes_room(uses) or not lasting
    assert cost.takes_room(uses + 1) or not cost.takes_room(uses)


@pytest.mark.parametrize(
    ("evicted", "unpacked", "pinned", "uses"),
    [(0, 0, True, 4), (10, 0, True, 8), (10, 0, False, 4), (10, 10, True, 4), (2, 10, True, 1)],
)
def test_under_the_legacy_manager_the_room_is_taken_from_so_many_uses_on(
    evicted: int, unpacked: int, pinned: bool, uses: int
) -> None:
    cost = legacy_cost(streamed=10, unpacked=unpacked, pinned=pinned, moved=10, evicted=evicted)
    assert cost.takes_room(uses)
    assert not cost.takes_room(uses - 1)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 16), st.booleans()), max_size=30))
def test_the_uses_that_come_are_never_taken_for_none(rounds: list[tuple[int, bool]]) -> None:
    history = History()
    for uses, _ in rounds:
        for index in range(uses):
            history.begin(Use(index == 0), COUNT)
            assert history.left >= 1
    for uses in (5, 5):
        for index in range(uses):
            history.begin(Use(index == 0), COUNT)
    assert history.left == 1, "as often as last time"


# What many rounds cost --------------------------------------------------------------------------------


def copied(first: int, use: int, move: int, rounds: int) -> int:
    """Return the bytes that so many rounds of one use copy; what streaming costs once is spent at its first use."""
    history, nodes, total = History(), graph({"positive": "a cat"}), 0
    for number in range(rounds):
        now = Cost(use, first, move, 8 * use)
        moves = history.begin(Use(True, f"prompt {number}", "positive", nodes, frozenset({"loader"})), now)
        total += move if moves else first + use
        first = first if moves else 0
    return total


def test_what_streaming_costs_once_is_not_held_against_it_in_every_round() -> None:
    """To stream 3.3 GB, to pack them once, and to take the room: in the second round it is streamed."""
    assert copied(132, 33, 162, 50) == 162 + 132 + 49 * 33


@given(st.integers(0, 500), st.integers(1, 100), st.integers(1, 1000), st.integers(1, 60))
def test_many_rounds_never_cost_twice_what_the_cheaper_way_does(
    first: int, use: int, move: int, rounds: int
) -> None:
    assert copied(first, use, move, rounds) <= 2 * min(first + rounds * use, rounds * move)
