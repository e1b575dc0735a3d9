"""The brain: words, explicit arguments, automatic rules and decisions. Pure Python."""

from .arguments import Argument, ExplicitArguments, Source, SourceKind
from .components import Mode, Placement, base_name, group_of, normalize_selector
from .facts import ComponentFacts, MachineFacts
from .policy import Policy
from .quantities import Budget, format_bytes, parse_budget
from .report import PlacementRow, Report
from .resolve import Decision, resolve

__all__ = [
    "Argument",
    "Budget",
    "ComponentFacts",
    "Decision",
    "ExplicitArguments",
    "MachineFacts",
    "Mode",
    "Placement",
    "PlacementRow",
    "Policy",
    "Report",
    "Source",
    "SourceKind",
    "base_name",
    "format_bytes",
    "group_of",
    "normalize_selector",
    "parse_budget",
    "resolve",
]
