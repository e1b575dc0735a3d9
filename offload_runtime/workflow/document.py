"""Placing in a workflow of either format, and taking it out again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import WorkflowError
from . import api, ui
from .plan import LeftOut, Plan
from .scope import Output
from .types import Types, of_comfyui_loaders


@dataclass(frozen=True)
class Placing:
    """What came of placing.

    Attributes:
        document: the workflow with what was inserted.
        loaders: how many Loaders were inserted.
        sources: how many outputs go through them now.
        left_out: what is not placed, with the reasons.
    """

    document: dict[str, Any]
    loaders: int
    sources: int
    left_out: tuple[LeftOut, ...]


def place(document: Any, policy: str | None = None, types: Types = of_comfyui_loaders) -> Placing:
    """Put Loaders behind everything that loads weights, in front of all that uses them.

    Args:
        document: a workflow of the interface, or an API prompt; it stays as it is.
        policy: the text of a policy file that holds for all of them; None where each has what is automatic.
        types: what the kinds of nodes hand out and take.

    Raises:
        WorkflowError: it is neither.
    """
    if is_ui(document):
        plans = _understood(ui.planned, document, types)
        return _placing(ui.placed(document, plans, policy), plans)
    _require_prompt(document)
    one = api.planned(document, types)
    return _placing(api.placed(document, one, policy), [one])


def plan_workflow(document: Any, types: Types) -> list[Plan]:
    """Return what each level of a workflow of the interface needs, for whoever inserts it.

    Raises:
        WorkflowError: it is none.
    """
    if not is_ui(document):
        raise WorkflowError("it is not a workflow as ComfyUI saves it")
    plans: list[Plan] = _understood(ui.planned, document, types)
    return plans


def remove(document: Any) -> tuple[dict[str, Any], int]:
    """Take out what `place` has inserted; the rest is as it was. Returns the workflow and the number of nodes.

    Raises:
        WorkflowError: it is neither a workflow nor an API prompt.
    """
    if is_ui(document):
        made: tuple[dict[str, Any], int] = _understood(ui.removed, document)
        return made
    _require_prompt(document)
    return api.removed(document)


def is_ui(document: Any) -> bool:
    """Tell whether a document has the format that ComfyUI saves."""
    return isinstance(document, dict) and isinstance(document.get("nodes"), list)


def _require_prompt(document: Any) -> None:
    nodes = list(document.values()) if isinstance(document, dict) else []
    if not nodes or not all(
        isinstance(node, dict)
        and isinstance(node.get("class_type"), str)
        and isinstance(node.get("inputs"), dict)
        for node in nodes
    ):
        raise WorkflowError("it is neither a workflow nor an API prompt; use ComfyUI's Save or Export (API)")


def _understood(work: Any, *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise WorkflowError(f"it is not a whole workflow: {type(error).__name__}: {error}") from error


def _placing(document: dict[str, Any], plans: Iterable[Plan]) -> Placing:
    made = list(plans)
    loaders = [loader for one in made for loader in one.loaders]
    outputs: list[Output] = [source.output for loader in loaders for source in loader.sources.values()]
    return Placing(document, len(loaders), len(outputs), tuple(left for one in made for left in one.left_out))
