"""Policy files: `*.offload.yaml`, YAML or JSON, versioned, safe to read whoever wrote them.

`schema.json_schema` exports the JSON Schema.
"""

from .codec import as_json, dump_policy, parse_policy
from .folder import DEFAULT_FILE, SUFFIX, PolicyFolder, file_name

__all__ = ["DEFAULT_FILE", "SUFFIX", "PolicyFolder", "as_json", "dump_policy", "file_name", "parse_policy"]
