"""Policy files: `*.offload.yaml`, YAML or JSON, versioned, safe to read whoever wrote them.

`schema.json_schema` exports the JSON Schema.
"""

from .codec import dump_policy, parse_policy
from .folder import DEFAULT_FILE, SUFFIX, PolicyFolder

__all__ = ["DEFAULT_FILE", "SUFFIX", "PolicyFolder", "dump_policy", "parse_policy"]
