"""Policy files: `*.offload.yaml`, YAML or JSON, versioned, safe to read whoever wrote them."""

from .codec import dump_policy, parse_policy
from .folder import DEFAULT_FILE, SUFFIX, PolicyFolder
from .schema import json_schema

__all__ = ["DEFAULT_FILE", "SUFFIX", "PolicyFolder", "dump_policy", "json_schema", "parse_policy"]
