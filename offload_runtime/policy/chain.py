"""A policy as a chain of nodes: what one Placement Policy node says, and the Set Placement nodes behind it.

In a file the closer selector wins; in a chain an override wins over the policy node, and a later override over an
earlier one. So the overrides stand from the widest selector to the closest, and a placement that a wider
override would hide becomes an override itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .arguments import Argument
from .components import COMPONENTS, GROUPS
from .policy import Policy
from .selectors import covers
from .settings import WORKFLOW_SETTINGS, Setting, spell_value


@dataclass(frozen=True)
class NodeChain:
    """The values of a chain, spelled as widgets hold them; what is not there is `auto`.

    Attributes:
        workflow: the settings of the workflow, of the policy node.
        placements: selector → placement of the policy node.
        overrides: one for each Set Placement node, in the order of the chain: `component`, and those of a
            component's settings that are set.
    """

    workflow: Mapping[str, str]
    placements: Mapping[str, str]
    overrides: tuple[Mapping[str, str], ...]


def as_chain(policy: Policy, selectors: Collection[str]) -> NodeChain:
    """Return the chain that decides every component as a policy does.

    Args:
        policy: the policy.
        selectors: the selectors that the policy node has a placement for; none covers another one.
    """
    arguments = policy.effective().arguments
    workflow = {a.setting.key: _spelled(a) for a in arguments if a.setting in WORKFLOW_SETTINGS}
    placements: dict[str, str] = {}
    overrides: dict[str, dict[str, str]] = {}
    wished = [a for a in arguments if a.setting not in WORKFLOW_SETTINGS]
    for argument in sorted(wished, key=lambda a: _closeness(a.selector)):
        selector = argument.selector
        if argument.setting is Setting.PLACEMENT and selector in selectors and not _hidden(argument, wished):
            placements[selector] = _spelled(argument)
        else:
            override = overrides.setdefault(selector, {"component": selector})
            override[argument.setting.key] = _spelled(argument)
    return NodeChain(workflow, placements, tuple(overrides.values()))


def _spelled(argument: Argument) -> str:
    return spell_value(argument.setting, argument.value)


def _hidden(argument: Argument, others: Collection[Argument]) -> bool:
    return any(
        other.setting is argument.setting
        and other.selector != argument.selector
        and covers(other.selector, argument.selector)
        for other in others
    )


def _closeness(selector: str) -> int:
    if selector in ("all", "default"):
        return ("all", "default").index(selector)
    return 2 if selector in GROUPS else 3 if selector in COMPONENTS else 4
