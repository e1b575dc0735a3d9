"""What is checked before a prompt runs.

ComfyUI repeats the answer of a node's `validate_inputs` for every argument that it names, each time on that widget.
So ours name one: the widget that a person types a value into. Words of lists are refused by ComfyUI itself; where its
version, or a link, lets one pass, the node refuses it as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..offload_runtime.errors import PolicyError
from ..offload_runtime.policy import Kind, is_set


class OpenList(list[str]):
    """The words that a combo offers, which ComfyUI searches for the word that it is given.

    Args:
        offered: the words.
        accepts: tells whether another word is right too.
    """

    def __init__(self, offered: Iterable[str], accepts: Callable[[Any], bool] = lambda word: True) -> None:
        super().__init__(offered)
        self._accepts = accepts

    def __contains__(self, word: object) -> bool:
        return super().__contains__(word) or not is_set(word) or self._accepts(word)


def choices(kind: Kind[Any]) -> OpenList:
    """Return the words that a widget offers, taken in whatever way people write them: `Layerwise`, or true for `on`."""
    return OpenList(kind.choices, lambda word: check(kind, word, "") is True)


def check(kind: Kind[Any], word: Any, widget: str) -> bool | str:
    """Return True for a value of a kind, else what is wrong; ComfyUI puts the widget's name before it."""
    try:
        if is_set(word):
            kind.parse(word, widget)
    except PolicyError as error:
        return str(error).removeprefix(f"{widget}: ")
    return True
