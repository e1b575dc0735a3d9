"""The schema of policy files, one class for each version that was ever released.

Pydantic stops here: what leaves this package is a `Policy`. Texts are checked by the same functions that read
widgets, so a file and a node refuse the same words with the same sentences.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from ..arguments import Setting
from ..components import HostTier, Mode, Placement
from ..selectors import parse_selectors
from ..words import is_set, parse_value
from .codec import VERSION
from .grammar import budget, device, legacy_key, legacy_value, selector_list, switch, words
from .legacy import LEGACY_KEYS


def _checked(setting: Setting) -> AfterValidator:
    def check(text: str | None) -> str | None:
        if is_set(text):
            parse_value(setting, text, setting.key)
        return text

    return AfterValidator(check)


_Placement = Annotated[str | None, _checked(Setting.PLACEMENT), WithJsonSchema(words(Placement))]
_Budget = Annotated[str | None, _checked(Setting.BUDGET), WithJsonSchema(budget())]
_Mode = Annotated[str | None, _checked(Setting.MODE), WithJsonSchema(words(Mode))]
_Host = Annotated[str | None, _checked(Setting.HOST), WithJsonSchema(words(HostTier))]
_Strict = Annotated[str | None, _checked(Setting.STRICT), WithJsonSchema(switch())]
_Device = Annotated[str | None, _checked(Setting.DEVICE), WithJsonSchema(device())]


class ComponentEntry(BaseModel):
    """What is asked for the components of one selector."""

    model_config = ConfigDict(extra="forbid")

    placement: _Placement = Field(None, description="Where they live.")
    vram_budget: _Budget = Field(
        None, description="VRAM that each of them may hold: an amount such as 6GB (1024³ bytes a GB), or 50%."
    )
    host: _Host = Field(None, description="Where the weights of streamed layers wait.")
    device: _Device = Field(None, description="The accelerator to compute on, such as gpu:1.")


def _entry(value: Any) -> Any:
    return {"placement": value} if value is None or isinstance(value, str) else value


def _selector(text: str) -> str:
    parse_selectors(text)
    return text


_Selector = Annotated[str, AfterValidator(_selector)]
_Entry = Annotated[ComponentEntry, BeforeValidator(_entry)]


class PolicyFileV1(BaseModel):
    """Placement policy of Layerwise Offload. What is not set, or set to auto, is decided automatically."""

    model_config = ConfigDict(extra="forbid")

    version: Literal["1"] = Field("1", description="The version of this schema.")
    mode: _Mode = Field(None, description="What automatic choices aim for.")
    strict: _Strict = Field(None, description="Refuse to run when the machine cannot do all that is asked.")
    vram_budget: _Budget = Field(
        None, description="VRAM that the weights of all components together may hold: 6GB, or 50%."
    )
    components: dict[_Selector, _Entry] | None = Field(
        None,
        description="Component, group, default, all, or a comma list → its placement, or all its settings.",
    )


VERSIONS: dict[str, type[PolicyFileV1]] = {"1": PolicyFileV1}


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
        "additionalProperties": {"anyOf": [*words(Placement)["anyOf"], entry]},
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
