"""The brain: words, explicit arguments, automatic rules and decisions. Pure Python.

Policy files are read and written by `policy.files`, which alone needs pydantic and PyYAML. What decides is imported
when it is asked for: ComfyUI's start needs the words only, and pays for nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .arguments import Argument, ExplicitArguments, Source, SourceKind
from .chain import NodeChain, as_chain
from .components import (
    COMPONENTS,
    IN_SAMPLER,
    OTHERS,
    SELECTORS,
    HostTier,
    Mode,
    Placement,
    base_name,
    group_of,
)
from .frames import NOT_SAID, VaeUse, vae_use
from .kinds import SWITCH, UNSET, Kind, is_set
from .links import is_link, linked_from, upstream
from .policy import Policy
from .quantities import Budget, format_bytes, parse_budget, parse_size
from .selectors import normalize_selector, parse_selectors
from .settings import (
    COMPONENT_SETTINGS,
    SETTINGS,
    WORKFLOW_SETTINGS,
    Scope,
    Setting,
    SettingRow,
    parse_value,
    spell_value,
)

if TYPE_CHECKING:
    from .beside import ALONE, Beside
    from .capabilities import PAGED, STREAMED, Capabilities, cannot_copy, not_movable, not_ours
    from .command_line import FLAGS
    from .decision import Decision, Plan
    from .facts import BystanderFacts, ComponentFacts, MachineFacts
    from .host_bytes import HostBytes
    from .measured import CardPeak, Measured
    from .prompt_models import NodeKind, PromptModels
    from .prompt_models import Source as ModelSource
    from .report import PlacementRow, Report, decision_table, unused_notes
    from .resolver import resolve
    from .suggest import suggest
    from .suggestions import RanFacts, RunFacts, Suggestion

_LATER = {
    "beside": ("ALONE", "Beside"),
    "capabilities": ("PAGED", "STREAMED", "Capabilities", "cannot_copy", "not_movable", "not_ours"),
    "command_line": ("FLAGS",),
    "decision": ("Decision", "Plan"),
    "facts": ("BystanderFacts", "ComponentFacts", "MachineFacts"),
    "host_bytes": ("HostBytes",),
    "measured": ("CardPeak", "Measured"),
    "prompt_models": ("NodeKind", "PromptModels", "ModelSource"),
    "report": ("PlacementRow", "Report", "decision_table", "unused_notes"),
    "resolver": ("resolve",),
    "suggest": ("suggest",),
    "suggestions": ("RanFacts", "RunFacts", "Suggestion"),
}
"""Module → what is imported from it when it is asked for."""

_MODULES = {name: module for module, names in _LATER.items() for name in names}
_ELSEWHERE = {"ModelSource": "Source"}  # what is called otherwise where it is at home


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_MODULES[name]}", __name__), _ELSEWHERE.get(name, name))
    globals()[name] = found
    return found


__all__ = [
    "ALONE",
    "COMPONENTS",
    "COMPONENT_SETTINGS",
    "FLAGS",
    "IN_SAMPLER",
    "NOT_SAID",
    "OTHERS",
    "PAGED",
    "SELECTORS",
    "SETTINGS",
    "STREAMED",
    "SWITCH",
    "UNSET",
    "WORKFLOW_SETTINGS",
    "Argument",
    "Beside",
    "Budget",
    "BystanderFacts",
    "Capabilities",
    "CardPeak",
    "ComponentFacts",
    "Decision",
    "ExplicitArguments",
    "HostBytes",
    "HostTier",
    "Kind",
    "MachineFacts",
    "Measured",
    "Mode",
    "ModelSource",
    "NodeChain",
    "NodeKind",
    "Placement",
    "PlacementRow",
    "Plan",
    "Policy",
    "PromptModels",
    "RanFacts",
    "Report",
    "RunFacts",
    "Scope",
    "Setting",
    "SettingRow",
    "Source",
    "SourceKind",
    "Suggestion",
    "VaeUse",
    "as_chain",
    "base_name",
    "cannot_copy",
    "decision_table",
    "format_bytes",
    "group_of",
    "is_link",
    "is_set",
    "linked_from",
    "normalize_selector",
    "not_movable",
    "not_ours",
    "parse_budget",
    "parse_selectors",
    "parse_size",
    "parse_value",
    "resolve",
    "spell_value",
    "suggest",
    "unused_notes",
    "upstream",
    "vae_use",
]
