"""What a person asked for: the value that travels on a `LAYERWISE_POLICY` link."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from .arguments import Argument, ExplicitArguments, Source, SourceKind
from .kinds import is_set
from .selectors import covering, parse_selectors, specificity
from .settings import COMPONENT_SETTINGS, WORKFLOW_SETTINGS, Setting, parse_value

_ORDER = {setting: i for i, setting in enumerate(Setting)}


@dataclass(frozen=True)
class Policy:
    """An immutable list of explicit values; within a kind of source, later ones win."""

    arguments: tuple[Argument, ...] = ()

    @property
    def explicit(self) -> ExplicitArguments:
        """The arguments as a tracker."""
        return ExplicitArguments(self.arguments)

    def extended(self, *others: Policy) -> Policy:
        """Return this policy with later ones chained behind it."""
        return Policy(tuple(chain.from_iterable((self.arguments, *(other.arguments for other in others)))))

    def effective(self) -> Policy:
        """Return the values that decide something, in the order of a policy file, each with its source.

        A value is left out where one of higher precedence covers its whole selector: in one file beside it, its
        closer selector would win.
        """
        kept: dict[tuple[Setting, str], tuple[int, Argument]] = {}
        for turn, argument in _by_precedence(self.arguments):
            own, *wider = ((argument.setting, selector) for selector in covering(argument.selector))
            # Within one source the closer selector wins, so there a wider one hides nothing.
            if own not in kept and all(kept[key][0] == turn for key in wider if key in kept):
                kept[own] = turn, argument
        return Policy(tuple(sorted((argument for _, argument in kept.values()), key=_in_file_order)))

    def flattened(self, source: Source) -> Policy:
        """Return a policy of one source that decides every component as this one does."""
        return Policy(tuple(replace(a, source=source, via="") for a in self.effective().arguments))

    def unused(self, components: Collection[str]) -> tuple[Argument, ...]:
        """Return the values that are for no component of a workflow."""
        return tuple(
            argument
            for argument in self.arguments
            if argument.setting not in WORKFLOW_SETTINGS
            and not any(specificity(argument.selector, component) for component in components)
        )

    @classmethod
    def from_widgets(
        cls,
        source: Source,
        *,
        placements: Mapping[str, object] | None = None,
        selectors: Mapping[str, str] | None = None,
        via: Mapping[str, str] | None = None,
        **settings: object,
    ) -> Policy:
        """Build a policy from the raw widget values of one node; `None` and `auto` are not set.

        Args:
            source: the node that holds the widgets.
            placements: widget → placement, spelled.
            selectors: widget → the selector that it places, where that is not its name.
            via: widget → the node that its value is linked from.
            settings: key of a setting of the workflow → its value, spelled.

        Raises:
            PolicyError: a value cannot be understood.
            TypeError: a key is of no such setting.
        """
        of_workflow = values_of_settings(WORKFLOW_SETTINGS, settings)
        named, links = selectors or {}, via or {}
        values = [(setting, "all", key, text) for setting, key, text in of_workflow]
        values += [(Setting.PLACEMENT, named.get(key, key), key, t) for key, t in (placements or {}).items()]
        return cls(
            tuple(
                argument
                for setting, selector, key, text in values
                for argument in explicit_values(setting, selector, text, source, key, links.get(key, ""))
            )
        )

    @classmethod
    def for_component(
        cls,
        source: Source,
        component: object,
        *,
        via: Mapping[str, str] | None = None,
        **settings: object,
    ) -> Policy:
        """Build a policy from the raw values that one node or entry sets for one selector.

        Args:
            source: who sets them.
            component: a component, group, `default`, `all`, or a comma list of them; `auto` sets nothing.
            via: key → the node that its value is linked from.
            settings: key of a setting of a component → its value, spelled.

        Raises:
            PolicyError: a value or the selector cannot be understood.
            TypeError: a key is of no such setting.
        """
        values = values_of_settings(COMPONENT_SETTINGS, settings)
        if not is_set(component):
            return cls()
        links = via or {}
        return cls(
            tuple(
                argument
                for setting, key, text in values
                for argument in explicit_values(
                    setting, str(component), text, source, key, links.get(key, "")
                )
            )
        )


def values_of_settings(
    settings: Collection[Setting], values: Mapping[str, object]
) -> list[tuple[Setting, str, object]]:
    """Return the settings with their keys and raw values, None for those that are not given.

    Raises:
        TypeError: a key is of none of the settings.
    """
    unknown = values.keys() - {setting.key for setting in settings}
    if unknown:
        raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
    return [(setting, setting.key, values.get(setting.key)) for setting in settings]


def explicit_values(
    setting: Setting, selector: str, text: object, source: Source, where: str, via: str = ""
) -> Iterable[Argument]:
    """Read one raw value into an argument for each selector of a comma list; nothing when it is not set.

    Raises:
        PolicyError: the value or the selector cannot be understood.
    """
    selectors = parse_selectors(selector)
    if not is_set(text):
        return []
    value = parse_value(setting, text, where)
    return [Argument(setting, name, value, source, via) for name in selectors]


def _by_precedence(arguments: tuple[Argument, ...]) -> list[tuple[int, Argument]]:
    """Return (turn of the source, argument), the highest precedence first and the last value of a source first."""
    turn, previous = 0, None
    ranked: list[tuple[SourceKind, int, int, Argument]] = []
    for position, argument in enumerate(arguments):
        turn += argument.source != previous
        previous = argument.source
        ranked.append((argument.source.kind, turn, position, argument))
    ranked.sort(key=lambda entry: entry[:3], reverse=True)
    return [(entry[1], entry[3]) for entry in ranked]


def _in_file_order(argument: Argument) -> tuple[bool, str, int]:
    return argument.setting not in WORKFLOW_SETTINGS, argument.selector, _ORDER[argument.setting]
