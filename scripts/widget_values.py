"""Which widgets the frontend shows on a node, and what a workflow file says about their values. Standard library only.

A file lists the values in the order of the widgets, and which widgets there are may depend on one of them: a choice
that brings inputs of its own (`COMFY_DYNAMICCOMBO_V3`) has them right behind it, called "choice.input". An input that
grows (`COMFY_AUTOGROW_V3`) has sockets only, so that nothing is stored for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

TYPES = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "LOAD_3D", "WEBCAM", "AUDIO_RECORD"}
CHOICE = "COMFY_DYNAMICCOMBO_V3"
# A rectangle is followed by the four numbers that edit it.
NUMBERS_OF_A_BOX = 4

Config = list[Any]  # type, and options if there are any


def widgets(inputs: Mapping[str, Mapping[str, Config]], before: str = "") -> Iterator[tuple[str, Config]]:
    """Inputs that the frontend shows as widgets, in order; hidden inputs are none.

    Args:
        inputs: what a node's description in `/object_info` has as its `input`.
        before: what stands before the names.
    """
    for group in ("required", "optional"):
        for name, config in inputs.get(group, {}).items():
            if _is_widget(config):
                yield before + name, config


def by_name(inputs: Mapping[str, Mapping[str, Config]], stored: list[Any] | dict[str, Any]) -> dict[str, Any]:
    """The values of a node's widgets as they are queued; where the node's schema has grown since, what it begins with.

    A value is missing only where nobody says what it begins with.
    """
    waiting, values, position = deque(widgets(inputs)), {}, 0
    while waiting:
        name, config = waiting.popleft()
        where: Any = name if isinstance(stored, dict) else position
        known = name in stored if isinstance(stored, dict) else position < len(stored)
        value = stored[where] if known else _begins_with(config)
        position += _places(name, config)
        waiting.extendleft(reversed(list(_brought(name, config, value))))
        if value is not None:
            # The API reads a two-element list as a link, so lists travel wrapped.
            values[name] = {"__value__": value} if isinstance(value, list) else value
    return values


def _begins_with(config: Config) -> Any:
    """What a widget shows before anybody has touched it, or None where the node does not say."""
    kind, options = config[0], _options(config)
    choices = kind if isinstance(kind, list) else options.get("options")
    first = choices[0] if choices else "" if kind == "IMAGECOMPARE" else None
    return options.get("default", first["key"] if isinstance(first, dict) else first)


def _options(config: Config) -> dict[str, Any]:
    return config[1] if len(config) > 1 else {}


def _is_widget(config: Config) -> bool:
    kind, options = config[0], _options(config)
    if options.get("forceInput"):
        return False
    shown = isinstance(kind, list) or kind in TYPES or kind == CHOICE
    return bool(shown or "widgetType" in options or options.get("socketless"))


def _brought(name: str, config: Config, value: Any) -> Iterator[tuple[str, Config]]:
    """The widgets that a choice brings."""
    if config[0] == CHOICE:
        chosen = (option for option in _options(config)["options"] if option["key"] == value)
        yield from widgets(next(chosen, {"inputs": {}})["inputs"], f"{name}.")


def _places(name: str, config: Config) -> int:
    """How many values are stored for a widget: a "control after generate" widget, for one, has its own."""
    if config[0] == "BOUNDING_BOX":
        return 1 + NUMBERS_OF_A_BOX
    is_seed = config[0] == "INT" and name.rpartition(".")[2] in ("seed", "noise_seed")
    return 2 if _options(config).get("control_after_generate", is_seed) else 1
