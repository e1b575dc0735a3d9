"""Who asked for what: every value of a policy with its source, and the rule for which one wins.

The idea is SGLang-Diffusion's explicit-argument set (`is_arg_explicitly_set`), with the source and the losers
kept: automatic choices fill only what nobody set, and the report can say who set the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from .kinds import Value
from .selectors import specificity
from .settings import Setting


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


V = TypeVar("V", bound=Value)


@dataclass(frozen=True)
class Argument:
    """One explicit value.

    Attributes:
        setting: what is set.
        selector: the canonical component, group, `default` or `all` that it applies to.
        value: what was asked for; never `auto`, which is the word for "not set". A device is its index.
        source: who asked.
        via: what a person calls the node that a linked value came from, or "" for a value typed in place.
    """

    setting: Setting
    selector: str
    value: Value
    source: Source
    via: str = ""

    @property
    def asked_by(self) -> str:
        """The source, with the link that the value came through."""
        return f"{self.source}, linked from {self.via}" if self.via else str(self.source)


class ExplicitArguments:
    """All explicit values that reach one workflow, ordered by precedence.

    A greater `SourceKind` wins; within a kind the source that comes later in the chain wins; within one
    source the closer selector wins. Neighbours with the same source are one source.
    """

    def __init__(self, arguments: Iterable[Argument]) -> None:
        by_setting: dict[Setting, list[tuple[int, Argument]]] = {}
        turn, previous = 0, None
        for argument in arguments:
            turn += argument.source != previous
            previous = argument.source
            by_setting.setdefault(argument.setting, []).append((turn, argument))
        self._by_setting = by_setting

    def candidates(self, setting: Setting, component: str = "all") -> tuple[Argument, ...]:
        """Return the values set for a component, the winner first and the losers behind it, nearest first."""
        given = self._by_setting.get(setting)
        if given is None:
            return ()
        ranked = [
            (argument.source.kind, turn, closeness, position, argument)
            for position, (turn, argument) in enumerate(given)
            if (closeness := specificity(argument.selector, component))
        ]
        ranked.sort(key=lambda entry: entry[:4], reverse=True)
        return tuple(entry[4] for entry in ranked)

    def winner(self, setting: Setting, component: str = "all") -> Argument | None:
        """Return the value that counts, or None when nobody set it."""
        return next(iter(self.candidates(setting, component)), None)

    def value(self, kind: type[V], setting: Setting, component: str = "all") -> V | None:
        """Return the bare value that counts, or None when nobody set it."""
        won = self.winner(setting, component)
        return won.value if won is not None and isinstance(won.value, kind) else None

    def is_explicit(self, setting: Setting, component: str = "all") -> bool:
        """Tell whether anybody set the value, whatever automatic would have chosen."""
        return self.winner(setting, component) is not None
