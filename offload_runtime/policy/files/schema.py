"""The schema of policy files, one class for each version that was ever released.

Pydantic stops here: what leaves this package is a `Policy`. Texts are checked by the same functions that read
widgets, so a file and a node refuse the same words with the same sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
)

from ..kinds import is_set
from ..selectors import parse_selectors
from ..settings import Setting, parse_value
from .grammar import legacy_key, legacy_value, selector_list, value
from .layout import ENTRY_KEYS, FILE_KEYS, VERSION
from .legacy import LEGACY_KEYS


def _fields(keys: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the optional fields of some settings, as a model is made of them."""
    return {
        key: (
            Annotated[str | None, _checked(setting), WithJsonSchema(value(setting.row.kind))],
            Field(None, description=setting.row.summary),
        )
        for key, setting in keys.items()
    }


def _checked(setting: Setting) -> AfterValidator:
    def check(text: str | None) -> str | None:
        if is_set(text):
            parse_value(setting, text, setting.key)
        return text

    return AfterValidator(check)


class _Entry(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"description": "What is asked for the components of one selector."}
    )


class _FileV1(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "description": "Placement policy of Layerwise Offload. What is not set, or set to auto, is decided "
            "automatically."
        },
    )

    version: Literal["1"] = Field("1", description="The version of this schema.")


def _full(written: Any) -> Any:
    short = written is None or isinstance(written, str)
    return {Setting.PLACEMENT.key: written} if short else written


def _selector(text: str) -> str:
    parse_selectors(text)
    return text


ComponentEntry: Any = create_model("ComponentEntry", __base__=_Entry, **_fields(ENTRY_KEYS))
_Components = dict[
    Annotated[str, AfterValidator(_selector)], Annotated[ComponentEntry, BeforeValidator(_full)]
]
PolicyFileV1 = create_model(
    "PolicyFileV1",
    __base__=_FileV1,
    **_fields(FILE_KEYS),
    components=(
        _Components | None,
        Field(
            None,
            description="Component, group, default, all, or a comma list → its placement, or all its settings.",
        ),
    ),
)

VERSIONS: dict[str, type[BaseModel]] = {"1": PolicyFileV1}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the current version, with the short form and the legacy keys, for editors."""
    schema = VERSIONS[str(VERSION)].model_json_schema()
    entry = {"$ref": "#/$defs/ComponentEntry"}
    schema["properties"]["version"] = {
        "enum": [VERSION, str(VERSION)],
        "description": "The version of this schema.",
        "title": "Version",
    }
    schema["properties"]["components"] = {
        "title": "Components",
        "description": schema["properties"]["components"]["description"],
        "type": ["object", "null"],
        "propertyNames": selector_list(),
        "additionalProperties": {"anyOf": [*value(Setting.PLACEMENT.row.kind)["anyOf"], entry]},
    }
    schema["patternProperties"] = {legacy_key(key): legacy_value(key) for key in LEGACY_KEYS}
    for key in LEGACY_KEYS:
        schema["properties"][key] = {
            "description": "SGLang-Diffusion's flag of this name.",
            "deprecated": True,
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Layerwise Offload placement policy",
        **{key: value for key, value in schema.items() if key != "title"},
    }
