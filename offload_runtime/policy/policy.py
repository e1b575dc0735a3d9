"""What a person asked for: the value that travels on a `PLACEMENT_POLICY` link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from .arguments import Argument, ExplicitArguments, Source, Value
from .components import Mode, Placement, normalize_selector, parse_choice
from .quantities import parse_budget

UNSET = "auto"
"""The sentinel of every widget: the value that means "decide for me" and is never explicit."""


@dataclass(frozen=True)
class Policy:
    """An immutable list of explicit values, the lowest precedence first."""

    arguments: tuple[Argument, ...] = ()

    @property
    def explicit(self) -> ExplicitArguments:
        """The arguments as a tracker."""
        return ExplicitArguments(self.arguments)

    def extended(self, other: Policy) -> Policy:
        """Return this policy with a later one chained behind it."""
        return Policy(self.arguments + other.arguments)

    @classmethod
    def from_widgets(
        cls,
        source: Source,
        *,
        mode: str | None = None,
        vram_budget: str | None = None,
        placements: Mapping[str, str | None],
    ) -> Policy:
        """Build a policy from raw widget values; `None` and `auto` are not set.

        Args:
            source: the node that holds the widgets.
            mode: a `Mode`, spelled.
            vram_budget: a budget such as `6GB` or `50%`.
            placements: selector → placement, spelled.

        Raises:
            PolicyError: a value cannot be understood.
        """
        arguments = []

        def add(setting: str, selector: str, value: Value) -> None:
            arguments.append(Argument(setting, selector, value, source))

        if _is_set(mode):
            add("mode", "all", parse_choice(Mode, mode, "mode"))
        for selector, text in placements.items():
            if _is_set(text):
                add("placement", normalize_selector(selector), parse_choice(Placement, text, selector))
        if _is_set(vram_budget):
            add("budget", "all", parse_budget(vram_budget, "vram_budget"))
        return cls(tuple(arguments))


def _is_set(text: str | None) -> TypeGuard[str]:
    return text is not None and text.strip().lower() not in ("", UNSET)
