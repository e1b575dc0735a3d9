"""What a policy file is made of: the keys of its top and of an entry, from the table of settings."""

from __future__ import annotations

from ..settings import COMPONENT_SETTINGS, WORKFLOW_SETTINGS

VERSION = 1
"""The version that is written."""

FILE_KEYS = {setting.key: setting for setting in WORKFLOW_SETTINGS}
"""Key at the top of a file → what it sets for the workflow."""

ENTRY_KEYS = {setting.key: setting for setting in COMPONENT_SETTINGS}
"""Key in the entry of a component → what it sets for that one."""

OWN_KEYS = ("version", *FILE_KEYS, "components")
"""The keys at the top of a file, apart from SGLang's."""
