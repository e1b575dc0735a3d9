"""ComfyUI's validation and execution errors as sentences: which node and input, what came, what could."""

from __future__ import annotations

import difflib
from typing import Any

from .problem import Problem

Prompt = dict[str, dict[str, Any]]
MOST_CHOICES_SHOWN = 12


def refusal_problem(prompt: Prompt, answer: dict[str, Any]) -> Problem:
    """The Problem for a /prompt answer that is not 200."""
    sentences = [
        _validation_sentence(name_node(prompt, node_id), error)
        for node_id, node in answer.get("node_errors", {}).items()
        for error in node["errors"]
    ]
    if not sentences:
        error = answer.get("error", {})
        if isinstance(error, str):
            error = {"message": error}
        sentences = [_joined(error.get("message", "ComfyUI refused the workflow"), error.get("details", ""))]
    # ComfyUI repeats a node's own message for each of the node's inputs.
    return Problem(" ".join(dict.fromkeys(sentences)))


def execution_problem(prompt: Prompt, data: dict[str, Any]) -> Problem:
    """The Problem for an `execution_error` message."""
    kind = str(data.get("exception_type", "")).rpartition(".")[2]
    message = " ".join(str(data.get("exception_message", "")).split()) or "no reason given"
    return Problem(f"{name_node(prompt, str(data.get('node_id')))} failed: {_stop(message)} ({kind})")


def name_node(prompt: Prompt, node_id: str) -> str:
    """How a person knows a node: its title (or type) and its number."""
    node = prompt.get(node_id, {})
    title = node.get("_meta", {}).get("title")
    kind = node.get("class_type", "a node")
    return f"node {node_id} ({title if title and title == kind else f'{title}, {kind}' if title else kind})"


def _validation_sentence(node: str, error: dict[str, Any]) -> str:
    extra = error.get("extra_info") or {}
    name, received = extra.get("input_name"), extra.get("received_value")
    match error.get("type"):
        case "value_not_in_list":
            return f"{node}: {name} is {received!r}, {_choices(received, extra)}"
        case "return_type_mismatch":
            wanted = _type_of(extra.get("input_config"))
            return (
                f"{node}: input {name} takes {wanted}, but {extra.get('received_type')} is wired into it; "
                f"connect an output of type {wanted}."
            )
        case "required_input_missing":
            return f"{node}: input {name} is not connected or has no value; connect it."
        case "value_smaller_than_min" | "value_bigger_than_max":
            options = (extra.get("input_config") or [None, {}])[1]
            return f"{node}: {name} is {received}, possible is {options.get('min')} to {options.get('max')}."
        case "custom_validation_failed":
            details = str(error.get("details", ""))
            # ComfyUI puts the input's name in front of a node's own message.
            return f"{node}: {_stop(details.removeprefix(f'{name} - '))}"
        case _:
            return f"{node}: {_joined(str(error.get('message', 'invalid')), str(error.get('details', '')))}"


def _choices(received: object, extra: dict[str, Any]) -> str:
    if extra.get("input_config") is None:  # ComfyUI leaves out lists of more than 20
        return "which is not one of its choices."
    possible = _combo_choices(extra["input_config"])
    if not possible:
        return "and there is nothing to choose from; put a file into that models folder."
    near = difflib.get_close_matches(str(received), possible, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    shown = ", ".join(possible[:MOST_CHOICES_SHOWN])
    more = f" and {len(possible) - MOST_CHOICES_SHOWN} more" if len(possible) > MOST_CHOICES_SHOWN else ""
    return f"possible: {shown}{more}{hint}."


def _combo_choices(config: Any) -> list[str]:
    """A combo's choices: first in the config in V1 nodes, among its options in V3 nodes."""
    choices = config[0] if isinstance(config[0], list) else (config[1] or {}).get("options", [])
    return [str(choice) for choice in choices]


def _type_of(config: Any) -> str:
    kind = config[0] if config else "another type"
    return kind if isinstance(kind, str) else "one of a list"


def _joined(message: str, details: str) -> str:
    return _stop(f"{message.rstrip('. ')}: {details}" if details else message)


def _stop(sentence: str) -> str:
    sentence = sentence.strip()
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
