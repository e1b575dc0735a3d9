"""Selectors: how a policy names the components that a value is for.

A selector covers a component by its exact name, by its base name (`video_vae` covers `video_vae_2`), by its
group, by `default`, or by `all`. Any two selectors are nested or disjoint, so "the closer one wins" is a
total order over the selectors that cover one component.
"""

from __future__ import annotations

import functools

from ..errors import PolicyError
from .components import ALIASES, COMPONENTS, DEFAULT_GROUPS, GROUPS, SELECTORS, base_name, group_of
from .hints import component_hint

_EXACT, _BASE, _GROUP, _DEFAULT, _ALL = 5, 4, 3, 2, 1


def normalize_selector(selector: str) -> str:
    """Return the canonical spelling of one component, group, `default` or `all`.

    Raises:
        PolicyError: the name is unknown; the message lists the nearest valid names.
    """
    name = selector.strip().lower().replace("-", "_")
    base = base_name(name)
    if base in ALIASES:
        name, base = ALIASES[base] + name.removeprefix(base), ALIASES[base]
    if name in SELECTORS or base in COMPONENTS:
        return name
    raise PolicyError(f"there is no component or group “{_short(selector)}”; {component_hint(selector)}")


def parse_selectors(text: str) -> tuple[str, ...]:
    """Read a comma list of selectors.

    Duplicates are dropped, `all` swallows the rest, and `none` is the empty list.

    Raises:
        PolicyError: a name is unknown, nothing is named, or `none` stands beside a name.
    """
    words = [word for word in (part.strip() for part in text.split(",")) if word]
    if not words:
        raise PolicyError(f"“{_short(text)}” names no component; name at least one, or write none")
    if any(word.lower() == "none" for word in words):
        if len(words) > 1:
            raise PolicyError(f"“{_short(text)}” says none and names components; write one or the other")
        return ()
    selectors = tuple(dict.fromkeys(normalize_selector(word) for word in words))
    return ("all",) if "all" in selectors else selectors


@functools.lru_cache(maxsize=4096)
def specificity(selector: str, component: str) -> int:
    """Rank how closely a canonical selector names a component; 0 means that it does not."""
    if selector == component:
        return _EXACT
    group = group_of(component)
    if selector == base_name(component):
        return _BASE
    if group is not None and selector == group:
        return _GROUP
    if selector == "default" and group in DEFAULT_GROUPS:
        return _DEFAULT
    return _ALL if selector == "all" else 0


def covering(selector: str) -> tuple[str, ...]:
    """Return the canonical selectors that name every component which this one names, itself the first."""
    if selector in ("all", "default"):
        return tuple(dict.fromkeys((selector, "all")))
    group = selector if selector in GROUPS else group_of(selector)  # as a selector, “vae” means the group
    wider = (group, "default" if group in DEFAULT_GROUPS else None)
    base = selector if selector in GROUPS else base_name(selector)
    return tuple(dict.fromkeys(name for name in (selector, base, *wider, "all") if name))


def covers(wide: str, narrow: str) -> bool:
    """Tell whether one canonical selector names every component that another one names."""
    return wide in covering(narrow)


def _short(text: str) -> str:
    """Quote what a person wrote, without filling their screen."""
    return text if len(text) <= 60 else f"{text[:57]}…"
