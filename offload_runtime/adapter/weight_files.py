"""Which files a component's weights may have come from: those that the workflow itself names.

A ComfyUI object does not say where it was loaded from. The prompt does: every loader in front of our node
names its file in an input. A wrong guess is harmless, because a weight is only ever mapped to equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import folder_paths

from ..policy import upstream

_SUFFIXES = (".safetensors", ".sft")


def candidate_files(prompt: Mapping[str, Any], node_id: str, slot: str) -> list[Path]:
    """Return the safetensors files named by the nodes in front of one input, the nearest first.

    Args:
        prompt: the prompt in API format, node id → node.
        node_id: our node.
        slot: the input whose ancestors are searched.
    """
    link = prompt.get(node_id, {}).get("inputs", {}).get(slot)
    found: dict[Path, None] = {}
    for ancestor in upstream(prompt, link):
        for value in prompt[ancestor].get("inputs", {}).values():
            if isinstance(value, str) and value.lower().endswith(_SUFFIXES):
                found.update(dict.fromkeys(_resolve(value)))
    return list(found)


def _resolve(name: str) -> Iterator[Path]:
    for folder in list(folder_paths.folder_names_and_paths):
        path = folder_paths.get_full_path(folder, name)
        if path is not None:
            yield Path(path)


def why_no_file(files: Sequence[Path]) -> str:
    """Say that no file holds the bytes of a model's layers, as the beginning of a sentence."""
    if not files:
        return "no file holds the same bytes"
    return f"no file that the workflow names ({', '.join(p.name for p in files)}) holds the same bytes"
