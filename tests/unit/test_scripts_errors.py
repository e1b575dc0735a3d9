"""ComfyUI's error answers as sentences."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.comfy_errors import execution_problem, refusal_problem
from scripts.pip_runner import cause_of

PROMPT = {
    "3": {"class_type": "KSampler", "inputs": {}, "_meta": {"title": "KSampler"}},
    "9": {"class_type": "UNETLoader", "inputs": {}, "_meta": {"title": "My model"}},
    "12": {"class_type": "Untitled", "inputs": {}},
}


def refused(node_id: str, *errors: dict[str, Any]) -> str:
    return str(refusal_problem(PROMPT, {"node_errors": {node_id: {"errors": list(errors)}}}))


def error(kind: str, message: str = "", details: str = "", **extra: Any) -> dict[str, Any]:
    return {"type": kind, "message": message, "details": details, "extra_info": extra}


@pytest.mark.parametrize(
    "config", [[["euler", "heun"], {}], ["COMBO", {"options": ["euler", "heun"]}]], ids=["V1", "V3"]
)
def test_a_wrong_choice_shows_the_choices_and_the_nearest(config: list[Any]) -> None:
    wrong = error("value_not_in_list", input_name="sampler", input_config=config, received_value="eular")
    assert refused("3", wrong) == (
        "node 3 (KSampler): sampler is 'eular', possible: euler, heun (did you mean 'euler'?)."
    )


def test_a_wrong_choice_of_very_many_shows_no_list() -> None:
    wrong = error("value_not_in_list", input_name="f", input_config=None, received_value="x")
    assert refused("9", wrong) == "node 9 (My model, UNETLoader): f is 'x', which is not one of its choices."


def test_a_choice_out_of_nothing_says_where_files_go() -> None:
    wrong = error("value_not_in_list", input_name="f", input_config=[[], {}], received_value="x")
    assert "there is nothing to choose from" in refused("9", wrong)


def test_a_wrong_wire_names_both_types() -> None:
    wrong = error("return_type_mismatch", input_name="model", input_config=["MODEL", {}], received_type="VAE")
    assert refused("3", wrong) == (
        "node 3 (KSampler): input model takes MODEL, but VAE is wired into it; connect an output of type MODEL."
    )


def test_a_missing_wire_is_named() -> None:
    assert refused("12", error("required_input_missing", input_name="clip")) == (
        "node 12 (Untitled): input clip is not connected or has no value; connect it."
    )


def test_a_number_out_of_range_shows_the_range() -> None:
    config = ["INT", {"min": 1, "max": 10}]
    wrong = error("value_bigger_than_max", input_name="steps", input_config=config, received_value=99)
    assert refused("3", wrong) == "node 3 (KSampler): steps is 99, possible is 1 to 10."


def test_a_nodes_own_message_is_said_once() -> None:
    """ComfyUI repeats it, with each input's name in front."""
    wrong = [
        error("custom_validation_failed", details=f"{name} - 6GBB is no size.", input_name=name)
        for name in ("mode", "vram_budget")
    ]
    assert refused("12", *wrong) == "node 12 (Untitled): 6GBB is no size."


def test_an_unknown_kind_of_error_keeps_comfyuis_words() -> None:
    assert refused("3", error("new_kind", "Something new", "look here")) == (
        "node 3 (KSampler): Something new: look here."
    )


def test_a_refusal_of_the_whole_prompt_keeps_comfyuis_words() -> None:
    answer = {"error": {"message": "Node 'X' not found.", "details": "Node ID '#1'"}, "node_errors": {}}
    assert str(refusal_problem(PROMPT, answer)) == "Node 'X' not found: Node ID '#1'."


def test_a_failed_node_says_what_it_said() -> None:
    data = {
        "node_id": "9",
        "exception_type": "safetensors_rust.SafetensorError",
        "exception_message": "header too\n large",
    }
    assert str(execution_problem(PROMPT, data)) == (
        "node 9 (My model, UNETLoader) failed: header too large. (SafetensorError)"
    )


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("NewConnectionError('...: Failed to establish a new connection: [Errno 111]')", "cannot be reached"),
        ("socket.gaierror: [Errno -2] Name or service not known", "cannot be reached"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left", "disk is full"),
        ("ERROR: No matching distribution found for torch==2.14.1", "no build for Python"),
        ("ERROR: [Errno 13] Permission denied: '/x'", "not writable"),
        ("ERROR: the moon is in the way", "pip says “ERROR: the moon is in the way”"),
    ],
)
def test_what_pip_says_becomes_a_cause(output: str, cause: str) -> None:
    assert cause in cause_of(output)
