"""The settings: one row for each, from which widgets, files and the panel in the browser derive.

A new setting is a name in `Setting`, a row in `SETTINGS`, and the rule that obeys it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .components import HostTier, Mode, Placement
from .kinds import SWITCH, Amount, Choice, Device, Kind, Value


class Scope(Enum):
    """What a setting holds for."""

    WORKFLOW = "workflow"
    COMPONENT = "component"


class Setting(str, Enum):
    """What can be set, in the order of a policy file."""

    MODE = "mode"
    STRICT = "strict"
    TOTAL_BUDGET = "total_budget"
    PLACEMENT = "placement"
    BUDGET = "budget"
    HOST = "host"
    DEVICE = "device"

    def __str__(self) -> str:
        return self.value

    @property
    def row(self) -> SettingRow:
        """What there is to know about it."""
        return _ROWS[self]

    @property
    def key(self) -> str:
        """What widgets and files call it; whether a budget is the workflow's, its place says."""
        return self.row.key


@dataclass(frozen=True)
class SettingRow:
    """All that widgets, files and the browser have to know about a setting.

    Attributes:
        setting: which one it is.
        key: its name as a widget, and in a file.
        scope: what it holds for: a Placement Policy node and the top of a file, or a Set Placement node and an entry.
        kind: its values: which there are, how they are read and spelled.
        tooltip: what the widget says about it.
        summary: what an editor of policy files says about it.
        advanced: whether few need it, so that the browser hides it until it is asked for.
    """

    setting: Setting
    key: str
    scope: Scope
    kind: Kind[Any]
    tooltip: str
    summary: str
    advanced: bool = False


SETTINGS = (
    SettingRow(
        Setting.MODE,
        key="mode",
        scope=Scope.WORKFLOW,
        kind=Choice(Mode, "mode"),
        tooltip="What automatic choices aim for. auto: what fits stays, what does not gives way. manual: nothing "
        "automatic. speed: what fits stays, and encoders that do not fit are streamed. memory: encoders run layer by "
        "layer.",
        summary="What automatic choices aim for.",
    ),
    SettingRow(
        Setting.PLACEMENT,
        key="placement",
        scope=Scope.COMPONENT,
        kind=Choice(Placement, "placement"),
        tooltip="Where it lives. auto: not set here. resident: whole on the device. layerwise: one layer at a "
        "time. offload: whole, and only while it is used. cpu: computed on the CPU.",
        summary="Where they live.",
    ),
    SettingRow(
        Setting.TOTAL_BUDGET,
        key="vram_budget",
        scope=Scope.WORKFLOW,
        kind=Amount(),
        tooltip="VRAM that the weights of all placed components together may hold: auto, an amount such as "
        "6GB (1024³ bytes a GB), or a share of the card such as 50%. What layerwise components have left "
        "over their window keeps layers resident. Set Placement gives one component a budget of its own.",
        summary="VRAM that the weights of all components together may hold: 6GB, or 50%.",
    ),
    SettingRow(
        Setting.STRICT,
        key="strict",
        scope=Scope.WORKFLOW,
        kind=SWITCH,
        tooltip="on: stop with a sentence when this machine cannot do all that you set. off, and auto: do as much of "
        "it as it can, and say in the report how far that is.",
        summary="Refuse to run when the machine cannot do all that is asked.",
        advanced=True,
    ),
    SettingRow(
        Setting.BUDGET,
        key="vram_budget",
        scope=Scope.COMPONENT,
        kind=Amount(),
        tooltip="VRAM that each component named above may hold: auto (not set here), an amount such as 2GB "
        "(1024³ bytes a GB), or a share of the card such as 20%.",
        summary="VRAM that each of them may hold: an amount such as 6GB (1024³ bytes a GB), or 50%.",
    ),
    SettingRow(
        Setting.HOST,
        key="host",
        scope=Scope.COMPONENT,
        kind=Choice(HostTier, "host tier"),
        tooltip="Where the weights of its layers wait. auto: not set here. pinned: page-locked memory, fastest. "
        "staged: ordinary memory, copied by a thread of its own. mapped: the model file, or one that is written to "
        "ComfyUI's temp folder where none holds the weights; least memory.",
        summary="Where the weights of streamed layers wait.",
        advanced=True,
    ),
    SettingRow(
        Setting.DEVICE,
        key="device",
        scope=Scope.COMPONENT,
        kind=Device(),
        tooltip="The accelerator that computes it: auto (ComfyUI's own), or its number, as in gpu:1. So far all "
        "components are placed on ComfyUI's own device: any other is left alone, and the report says so.",
        summary="The accelerator to compute on, such as gpu:1. So far it is ComfyUI's own: any other is left alone.",
        advanced=True,
    ),
)
"""In the order of the widgets. Workflows hold their values by position: a new row goes to the end."""

_ROWS: Mapping[Setting, SettingRow] = {row.setting: row for row in SETTINGS}

WORKFLOW_SETTINGS = tuple(setting for setting in Setting if setting.row.scope is Scope.WORKFLOW)
"""Settings of the whole workflow; their selector is always `all`."""

COMPONENT_SETTINGS = tuple(setting for setting in Setting if setting.row.scope is Scope.COMPONENT)
"""Settings of the components that a selector names."""


def parse_value(setting: Setting, text: object, where: str) -> Value:
    """Read the value of a setting.

    Args:
        setting: what is set.
        text: what a person wrote; a number or boolean is read as it prints.
        where: what they call the place, for the error.

    Raises:
        PolicyError: the value is not one of the setting's; the message says which are.
    """
    value: Value = setting.row.kind.parse(text, where)
    return value


def spell_value(setting: Setting, value: Value) -> str:
    """Return a value so that `parse_value` reads the very same one."""
    return setting.row.kind.spell(value)
