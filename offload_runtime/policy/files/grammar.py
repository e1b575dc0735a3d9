"""The texts of a policy file as JSON Schema: what the parser reads, spelled as patterns for editors.

A word is offered as the program writes it, and accepted as people do: in any case, with spaces around it, and with
dashes for underscores in names. What is blank or `auto` is not set.
"""

from __future__ import annotations

from typing import Any

from ..components import ALIASES, COMPONENTS, NUMBER, SELECTORS
from ..kinds import SWITCH, UNSET, Kind
from ..settings import Setting
from .legacy import LAYERWISE_LISTS, RESIDENCY

Schema = dict[str, Any]


def value(kind: Kind[Any]) -> Schema:
    """Return the schema of a value of some kind, or of none."""
    text = _text("|".join((*map(_spellings, kind.words), *kind.patterns)))
    schemas = [{"enum": [*kind.offered, None]}, text]
    if kind.numbers is not None:
        schemas.append({"type": "integer", "minimum": kind.numbers[0], "maximum": kind.numbers[-1]})
    return {"anyOf": schemas}


def selector_list() -> Schema:
    """Return the schema of a name, as the key of a mapping: a comma list, or `none`."""
    return {"pattern": _anchored(f"{_list_of(_SELECTOR)}|{_list_of(_NONE, once=True)}")}


def legacy_key(key: str) -> str:
    """Return the pattern of one of SGLang's keys: a flag with or without its dashes."""
    return rf"^\s*-*{_spellings(key, dashed=True)}\s*$"


def legacy_value(key: str) -> Schema:
    """Return the schema of the value of one of SGLang's keys."""
    if key == "performance_mode":
        return value(Setting.MODE.row.kind)
    if key == "component_residency":
        return _residency()
    return _names() if key in (*LAYERWISE_LISTS, "cpu_offload_components") else value(SWITCH)


def _names() -> Schema:
    """Return the schema of names: a comma list, a list of them, or nothing."""
    listed = {"type": "string", "pattern": _anchored(_list_of(_SELECTOR))}
    none = {"type": "string", "pattern": _anchored(_list_of(_NONE, once=True))}
    blank = {"type": "string", "pattern": r"^[\s,]*$"}
    several = {"type": "array", "items": {"anyOf": [listed, blank]}, "contains": listed}
    nothing = {"type": "array", "items": {"anyOf": [none, blank]}, "contains": none, "maxContains": 1}
    empty = {"type": "array", "maxItems": 0}
    return {
        "anyOf": [{"enum": [UNSET, None]}, _text(_spellings(UNSET)), listed, none, several, nothing, empty]
    }


def _residency() -> Schema:
    """Return the schema of residency modes: COMPONENT=MODE in a comma list, a list of those, or a mapping."""
    modes = "|".join(_spellings(mode, dashed=True) for mode in (*RESIDENCY, UNSET))
    pairs = _list_of(rf"(?:{_SELECTOR}|{_NONE})\s*=(?:\s*(?:{modes}))?")
    text = {"type": "string", "pattern": _anchored(rf"{pairs}|[\s,]*")}
    mode = {"anyOf": [{"enum": [*RESIDENCY, UNSET, None]}, _text(modes)]}
    return {
        "anyOf": [
            {"enum": [UNSET, None]},
            _text(_spellings(UNSET)),
            text,
            {"type": "array", "items": text},
            {"type": "object", "propertyNames": selector_list(), "additionalProperties": mode},
        ]
    }


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": rf"^\s*(?:(?:{pattern})\s*)?$"}


def _anchored(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _list_of(entry: str, *, once: bool = False) -> str:
    """Return the pattern of a comma list; a comma too many does no harm."""
    more = "" if once else rf"(?:,[\s,]*(?:{entry})\s*)*"
    return rf"[\s,]*(?:{entry})\s*{more}(?:,[\s,]*)?"


def _spellings(word: str, *, dashed: bool = False) -> str:
    """Return the pattern of a word in any case; a dash is an underscore, too, where the parser says so."""
    letters = (f"[{c.upper()}{c}]" if c.isalpha() else "[-_]" if dashed and c == "_" else c for c in word)
    return "".join(letters)


_NAMES = "|".join(
    _spellings(name, dashed=True) for name in sorted((*COMPONENTS, *ALIASES), key=len, reverse=True)
)
_OTHERS = (name for name in SELECTORS if name not in COMPONENTS)
_SELECTOR = (
    rf"(?:(?:{_NAMES})(?:[-_]{NUMBER})?|{'|'.join(_spellings(name, dashed=True) for name in _OTHERS)})"
)
_NONE = _spellings("none")
