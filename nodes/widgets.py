"""The widget of a setting, from its row in the table."""

from __future__ import annotations

from comfy_api.latest import io

from ..offload_runtime.policy import UNSET, SettingRow
from .checks import choices


def setting_widget(row: SettingRow, *, name: str = "", tooltip: str = "", group: str = "") -> io.Input:
    """Return a widget that is optional and starts at `auto`.

    Args:
        row: the setting.
        name: what the widget is called, where that is not the setting's key.
        tooltip: what it says, where that is not the setting's.
        group: the group of components that it is for, where it is for one; the browser hears of it.
    """
    options = {"default": UNSET, "optional": True, "tooltip": tooltip or row.tooltip}
    if row.kind.choices:
        widget = io.Combo.Input(name or row.key, options=choices(row.kind), **options)
    else:
        widget = io.String.Input(name or row.key, **options)
    # What reaches the browser beside: not every version takes it as an argument, and every browser knows `advanced`.
    said = {"placement_group": group, "advanced": row.advanced}
    widget.extra_dict = {name: value for name, value in said.items() if value}
    return widget
