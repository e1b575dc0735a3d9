"""Policy files to policies and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import PolicyError
from ..arguments import Argument, Source
from ..hints import suggest
from ..policy import Policy, explicit_values
from ..selectors import parse_selectors
from ..settings import WORKFLOW_SETTINGS, Setting, spell_value
from .layout import ENTRY_KEYS, FILE_KEYS, OWN_KEYS, VERSION
from .legacy import LEGACY_KEYS, is_legacy, legacy_policy, without_meaning
from .reader import Path, RawFile, read_raw

if TYPE_CHECKING:
    from pydantic import ValidationError

HEADER = "# Placement policy of Layerwise Offload. What is not set here is decided automatically.\n"


def parse_policy(data: bytes | str, source: Source) -> Policy:
    """Read a policy file.

    Args:
        data: the content of a YAML or JSON file of any released version.
        source: who its values are from; its place names the file in errors.

    Raises:
        PolicyError: the content is not a policy; its message, `line` and `column` say where.
    """
    file = read_raw(data, source.place)
    native = {key: value for key, value in file.values.items() if not is_legacy(key)}
    own = Policy(tuple(_arguments(file, _validated(file, native), source)))
    if len(native) == len(file.values):
        return own
    return legacy_policy(file).extended(own).flattened(source)


def dump_policy(policy: Policy) -> str:
    """Return a policy as a YAML file of the current version, each value with its source as a comment.

    Reading it gives `policy.flattened(…)`: one source that decides every component as the policy does.
    """
    lines = [HEADER + f"version: {VERSION}"]
    components: dict[str, list[Argument]] = {}
    for argument in policy.effective().arguments:
        if argument.setting in WORKFLOW_SETTINGS:
            lines.append(_line(argument))
        else:
            components.setdefault(argument.selector, []).append(argument)
    if components:
        lines.append("components:")
    for selector, arguments in components.items():
        if [argument.setting for argument in arguments] == [Setting.PLACEMENT]:
            lines.append("  " + _line(arguments[0], key=selector))
        else:
            lines.append(f"  {selector}:")
            lines.extend("    " + _line(argument) for argument in arguments)
    return "\n".join(lines) + "\n"


def as_json(text: str) -> str:
    """Return a written policy as JSON, for a file of that suffix; JSON has no comments, so they are lost."""
    values = read_raw(text, "policy").values
    return json.dumps({**values, "version": VERSION}, indent=2) + "\n"


def _line(argument: Argument, key: str | None = None) -> str:
    value = spell_value(argument.setting, argument.value)
    by = "".join(c if c.isprintable() else " " for c in argument.asked_by)[:200]
    return f"{key or argument.setting.key}: {value}  # {by}"


def _validated(file: RawFile, native: dict[str, Any]) -> dict[str, Any]:
    """Check the pack's own keys against the schema of the file's version; a file without one is of the first."""
    # ComfyUI does not need pydantic to start, and building the schema takes as long as importing the whole pack.
    from pydantic import ValidationError

    from .schema import VERSIONS

    version = native.get("version") or "1"
    if not isinstance(version, str) or version not in VERSIONS:
        known = ", ".join(VERSIONS)
        raise file.error(
            f"this pack reads version {known} of policy files; a newer pack may read this", ("version",)
        )
    try:
        return VERSIONS[version].model_validate(native).model_dump()
    except ValidationError as error:
        raise _first_error(file, error) from None


def _arguments(file: RawFile, values: dict[str, Any], source: Source) -> list[Argument]:
    arguments = _explicit(FILE_KEYS, "all", values, source)
    seen: dict[str, str] = {}
    for key, entry in (values["components"] or {}).items():
        for selector in parse_selectors(key):
            if selector in seen:
                message = f"{selector} is named twice: here and under “{seen[selector]}”"
                raise file.error(message, ("components", key), at_key=True)
            seen[selector] = key
            arguments += _explicit(ENTRY_KEYS, selector, entry, source)
    return arguments


def _explicit(
    keys: Mapping[str, Setting], selector: str, values: Mapping[str, Any], source: Source
) -> list[Argument]:
    return [
        argument
        for key, setting in keys.items()
        for argument in explicit_values(setting, selector, values[key], source, key)
    ]


def _first_error(file: RawFile, error: ValidationError) -> PolicyError:
    """Return the error that stands first in the file, as a sentence."""
    found = []
    for problem in error.errors(include_url=False):
        path: Path = tuple(part for part in problem["loc"] if part != "[key]")
        at_key = problem["type"] == "extra_forbidden" or "[key]" in problem["loc"]
        found.append(file.error(_sentence(problem, path), path, at_key=at_key))
    return min(found, key=lambda e: (e.line or 0, e.column or 0))


def _sentence(problem: Any, path: Path) -> str:
    name = str(path[-1])[:60] if path else "the file"
    if problem["type"] == "extra_forbidden":
        if len(path) > 1:
            return f"there is no setting “{name}”; {suggest(name, ENTRY_KEYS)}"
        if why := without_meaning(str(path[-1])):
            return f"“{name}” is SGLang's and has no meaning here: {why}"
        near = suggest(name, [*OWN_KEYS, *LEGACY_KEYS])
        return f"there is no key “{name}”; {near if near.startswith('did') else suggest('', OWN_KEYS)}"
    cause = (problem.get("ctx") or {}).get("error")
    if isinstance(cause, PolicyError):
        return str(cause)
    expected = {"string_type": "one word", "dict_type": "a mapping", "model_type": "a placement or a mapping"}
    return f"“{name}” needs {expected.get(problem['type'], 'another value')} here"
