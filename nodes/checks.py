"""What is checked before a prompt runs.

ComfyUI repeats the answer of a node's `validate_inputs` for every argument that it names, each time on that widget.
So ours name one: the widget that a person types a value into. A word that a list does not offer is refused by
ComfyUI itself, or, where the version or an `OpenList` lets it pass, like a linked value when the node runs.
"""

from __future__ import annotations

from typing import Any

from ..offload_runtime.errors import PolicyError
from ..offload_runtime.policy import is_set, parse_budget


class OpenList(list[str]):
    """The words that a combo offers, when others are right too; the node checks them as it runs."""

    def __contains__(self, word: object) -> bool:
        return True


def check_budget(text: Any) -> bool | str:
    """Return True for a budget, and what is wrong with anything else; ComfyUI puts the widget's name before it."""
    try:
        if is_set(text):
            parse_budget(str(text), "vram_budget")
    except PolicyError as error:
        return str(error).removeprefix("vram_budget: ")
    return True
