"""The brain: words, explicit arguments, automatic rules and decisions. Pure Python.

Policy files are read and written by `policy.files`, which alone needs pydantic and PyYAML.
"""

from .arguments import Argument, ExplicitArguments, Source, SourceKind
from .beside import ALONE, Beside
from .capabilities import PAGED, STREAMED, Capabilities, cannot_copy, not_movable, not_ours
from .chain import NodeChain, as_chain
from .command_line import FLAGS
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
from .decision import Decision, Plan
from .facts import BystanderFacts, ComponentFacts, MachineFacts
from .frames import NOT_SAID, VaeUse, vae_use
from .host_bytes import HostBytes
from .kinds import SWITCH, UNSET, Kind, is_set
from .links import is_link, linked_from, upstream
from .policy import Policy
from .prompt_models import NodeKind, PromptModels
from .prompt_models import Source as ModelSource
from .quantities import Budget, format_bytes, parse_budget, parse_size
from .report import PlacementRow, Report, decision_table, unused_notes
from .resolve import resolve
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
from .suggestions import could_stay_resident

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
    "ComponentFacts",
    "Decision",
    "ExplicitArguments",
    "HostBytes",
    "HostTier",
    "Kind",
    "MachineFacts",
    "Mode",
    "ModelSource",
    "NodeChain",
    "NodeKind",
    "Placement",
    "PlacementRow",
    "Plan",
    "Policy",
    "PromptModels",
    "Report",
    "Scope",
    "Setting",
    "SettingRow",
    "Source",
    "SourceKind",
    "VaeUse",
    "as_chain",
    "base_name",
    "cannot_copy",
    "could_stay_resident",
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
    "unused_notes",
    "upstream",
    "vae_use",
]
