"""Who asked for what: every value of a policy with its source, and the rule for which one wins.

The idea is SGLang-Diffusion's explicit-argument set (`is_arg_explicitly_set`), with the source kept:
automatic choices fill only what nobody set, and the report can say who set the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from .components import Mode, Placement, specificity
from .quantities import Budget


class SourceKind(IntEnum):
    """Where a value came from; a greater kind wins over a smaller one."""

    USER_DEFAULT = 1
    COMMAND_LINE = 2
    FILE = 3
    NODE = 4
    OVERRIDE = 5


@dataclass(frozen=True)
class Source:
    """One place that sets values: its kind and what a person calls it (`Placement Policy, node 12`)."""

    kind: SourceKind
    place: str

    def __str__(self) -> str:
        return self.place


Value = Placement | Mode | Budget


@dataclass(frozen=True)
class Argument:
    """One explicit value.

    Attributes:
        setting: `placement`, `budget` or `mode`.
        selector: the canonical component, group, `default` or `all` that it applies to.
        value: what was asked for; never `auto`, which is the word for "not set".
        source: who asked.
    """

    setting: str
    selector: str
    value: Value
    source: Source


class ExplicitArguments:
    """All explicit values that reach one decision, ordered by precedence.

    A greater `SourceKind` wins; within a kind the source that comes later in the chain wins; within one
    source an exact name beats a group beats `all`.
    """

    def __init__(self, arguments: Iterable[Argument]) -> None:
        self._arguments = tuple(arguments)
        self._turn = {source: i for i, source in enumerate(dict.fromkeys(a.source for a in self._arguments))}

    def candidates(self, setting: str, component: str) -> tuple[Argument, ...]:
        """Return the values set for a component, the winner first."""
        matching = [a for a in self._arguments if a.setting == setting and specificity(a.selector, component)]
        return tuple(sorted(reversed(matching), key=lambda a: self._rank(a, component), reverse=True))

    def winner(self, setting: str, component: str = "all") -> Argument | None:
        """Return the value that counts, or None when nobody set it."""
        return next(iter(self.candidates(setting, component)), None)

    def is_explicit(self, setting: str, component: str = "all") -> bool:
        """Tell whether anybody set the value, whatever automatic would have chosen."""
        return self.winner(setting, component) is not None

    def _rank(self, argument: Argument, component: str) -> tuple[int, int, int]:
        source = argument.source
        return source.kind, self._turn[source], specificity(argument.selector, component)
