"""The uses of a model in a row, as ComfyUI's executor tells of them: which node of which prompt runs now."""

from __future__ import annotations

import weakref
from typing import Any

import comfy.model_management as mm
from torch import nn

from ..policy.rounds import Cost, History, Use
from ..policy.users import PromptNodes
from .contacts import Group, missing

_graphs: weakref.WeakKeyDictionary[Any, tuple[int, PromptNodes]] = weakref.WeakKeyDictionary()
"""Prompt → how many nodes it had, and those; it grows while it runs."""


class Rounds:
    """Tells whether a use of one model shall take the room of others, because several come in a row."""

    def __init__(self, model: weakref.ref[nn.Module]) -> None:
        self._model = model
        self._loaders: set[str] = set()  # the nodes that placed it
        self._history = History()
        self._loads: dict[int, Any] = {}

    def placed_now(self) -> None:
        """Note which node places the model: the one that runs now."""
        node = running_node()
        if node:
            self._loaders.add(node)

    @property
    def goes_on(self) -> bool:
        """Whether the room was taken for a use, and more are to come."""
        return self._history.takes_room and self.left > 1

    @property
    def left(self) -> int:
        """How many uses were expected to come when the last one began, that one included."""
        return self._history.left

    def begin(self, cost: Cost) -> bool:
        """Note that a use begins, and tell whether it shall take the room."""
        use = self._use()
        self._loads = self._loads_beside()
        return self._history.begin(use, cost)

    def would_begin(self, cost: Cost) -> bool:
        """Tell what `begin` would, and note nothing."""
        return self._history.would_begin(self._use(), cost)

    def _use(self) -> Use:
        prompt, node = _running()
        came = any(self._loads.get(model) is not load for model, load in self._loads_beside().items())
        graph = _graph(prompt) if prompt is not None else None
        if graph is None:
            return Use(came)
        return Use(came, prompt, node, graph, frozenset(self._loaders))

    def _loads_beside(self) -> dict[int, Any]:
        """Return what changes whenever another model is loaded; other text encoders are in the same round."""
        model = self._model()
        return {
            id(patcher.model): getattr(loaded, "model_finalizer", None)  # ComfyUI makes one at each load
            for loaded in mm.current_loaded_models
            if (patcher := loaded.model) is not None
            and patcher.model is not model
            and not getattr(patcher, "is_clip", False)
        }


def running_node() -> str:
    """Return the id of the node that runs now, or "" where ComfyUI does not say."""
    return _running()[1]


def running_prompt() -> str | None:
    """Return the id of the prompt that runs now, or None where ComfyUI does not say."""
    return _running()[0]


def _running() -> tuple[str | None, str]:
    """Return the ids of the prompt and of the node that run, as far as ComfyUI says so."""
    if missing(Group.NODE):
        return None, ""
    from comfy_execution.utils import get_executing_context

    now = get_executing_context()
    return (now.prompt_id, str(now.node_id)) if now is not None else (None, "")


def _graph(prompt_id: str) -> PromptNodes | None:
    """Return the nodes of the prompt that runs."""
    if missing(Group.PROMPT):
        return None
    from comfy_execution.progress import get_progress_state

    state = get_progress_state()
    if state.prompt_id != prompt_id:
        return None
    prompt = state.dynprompt
    ids = prompt.all_node_ids()
    size, graph = _graphs.get(prompt, (0, None))
    if graph is None or size != len(ids):
        graph = PromptNodes({node_id: prompt.get_node(node_id) for node_id in ids})
        _graphs[prompt] = len(ids), graph
    return graph
