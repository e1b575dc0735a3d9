"""Which files a component's weights may have come from, and why a file does not serve.

A ComfyUI object rarely says where it was loaded from. The prompt does: every loader in front of our node names its
file in an input. A wrong guess is harmless, because a weight is only ever read from where its very values are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import folder_paths
import torch
from torch import nn

from ..engine import dtypes_in_file
from ..engine.parts import distinct_parts
from ..engine.widening import without_loss
from ..policy import is_link, upstream
from . import hardware
from .carriers import patcher_of
from .record import record_of

_SAFETENSORS = (".safetensors", ".sft")
_SUFFIXES = (*_SAFETENSORS, ".gguf", ".ckpt", ".pt", ".pt2", ".pth", ".bin", ".pkl")

_DTYPE_FLAGS = {
    "clip": "-text-enc",
    "vae": "-vae",
    "model": "-unet",
}
"""Socket → how the flags end that name the dtype in which ComfyUI keeps such a component."""


class Prompt(NamedTuple):
    """A prompt as it runs.

    Attributes:
        nodes: node id → node, those that others were expanded into, too.
        parents: such a node → the one that was expanded.
    """

    nodes: Mapping[str, Mapping[str, Any]]
    parents: Mapping[str, str] = {}


def candidate_files(prompt: Prompt, node_id: str, socket: str, value: Any) -> list[Path]:
    """Return the model files that an object may have been loaded from, the likeliest first.

    What was once found for a model counts on: a node that has expanded into loaders does not do it again while
    ComfyUI remembers its outputs, and the prompt has no loaders then.

    Args:
        prompt: the prompt.
        node_id: our node.
        socket: the input whose ancestors are searched.
        value: the ComfyUI object that came in there.
    """
    patcher = patcher_of(socket, value)
    model = getattr(patcher, "model", None)
    files = [*loaded_from(patcher), *_named_before(prompt, node_id, socket)]
    if not isinstance(model, nn.Module):
        return list(dict.fromkeys(files))
    return remember(model, files)


def named_files(inputs: Mapping[str, Any]) -> list[Path]:
    """Return the model files that the inputs of one node name."""
    return list(dict.fromkeys(file for name in weight_names(inputs) for file in folders_with(name).values()))


def weight_names(inputs: Mapping[str, Any]) -> list[str]:
    """Return the words in the inputs of one node that end as the names of model files do."""
    return [value for value in _strings(inputs) if value.lower().endswith(_SUFFIXES)]


def remember(model: nn.Module, files: Iterable[Path]) -> list[Path]:
    """Note that a model may have been loaded from some files; return all that it may come from, the likeliest first."""
    record = record_of(model)
    record.files = tuple(dict.fromkeys([*files, *record.files]))
    return list(record.files)


def usable(files: Iterable[Path]) -> list[Path]:
    """Return those of some files that weights may be read from while they are used."""
    if hardware.given("--disable-mmap"):
        return []
    return [file for file in files if file.suffix.lower() in _SAFETENSORS]


def why_unusable(files: Sequence[Path], socket: str, model: nn.Module) -> str:
    """Return why a model's weights cannot be read from any of some files, as the end of a sentence."""
    flag = hardware.given("--disable-mmap")
    if flag:
        return f"{flag} lets no weights be read from their file while they are used"
    if not files:
        return "the workflow names no file that it could be read from"
    converted = next(filter(None, (_conversion(file, socket, model) for file in usable(files))), None)
    if converted is not None:
        return converted
    for file in files:
        if file.suffix.lower() == ".gguf":
            return f"its file {file.name} stores other bytes than the model uses"
    others = [file.name for file in files if file not in usable(files)]
    if len(others) == len(files):
        return (
            f"only a safetensors file can be read layer by layer, and the workflow names {', '.join(others)}"
        )
    return f"no file that the workflow names ({', '.join(f.name for f in files)}) holds the same weights"


def _conversion(file: Path, socket: str, model: nn.Module) -> str | None:
    """Say that a file holds most of a model in another dtype, and the model was rounded, if that is so."""
    stored, used, count, total = None, None, 0, 0
    dtypes = dtypes_in_file(file)
    for part in distinct_parts(model.parameters()):
        found = dtypes.get(tuple(part.shape), set())
        total += part.nbytes
        if found and not any(without_loss(dtype, part.dtype) for dtype in found):
            stored, used, count = min(found, key=str), part.dtype, count + part.nbytes
    if used is None or 2 * count < total:
        return None
    return f"its file {file.name} stores {_name(stored)}, and {_use(socket, used)}"


def _use(socket: str, dtype: torch.dtype) -> str:
    """Say who wants a dtype, and which: a flag, where one asks for it."""
    short = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}
    name = short.get(dtype, _name(dtype).replace("float8", "fp8"))
    asked = (f"--{name}{_DTYPE_FLAGS.get(socket, '')}", f"--force-{name}")
    flag = next(filter(None, map(hardware.given, asked)), None)
    return f"{flag} makes it {_name(dtype)}" if flag else f"ComfyUI uses {_name(dtype)}"


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def loaded_from(patcher: Any) -> Iterator[Path]:
    """Yield the files that ComfyUI would load a patcher from again; older versions do not know."""
    again = getattr(patcher, "cached_patcher_init", None)
    if again is not None:
        for value in _strings(list(again[1])):
            if value.lower().endswith(_SUFFIXES) and os.path.isfile(value):
                yield Path(value)


def _named_before(prompt: Prompt, node_id: str, socket: str) -> Iterator[Path]:
    """Yield the files that the nodes in front of one input name, the nearest first."""
    links = _with_expansions(prompt)
    given = prompt.nodes.get(node_id, {}).get("inputs", {}).get(socket)
    start = given if is_link(given) else [prompt.parents.get(node_id), 0]
    for ancestor in upstream(links, start):
        yield from named_files(prompt.nodes[ancestor].get("inputs", {}))


def _with_expansions(prompt: Prompt) -> dict[str, dict[str, Any]]:
    """Return the nodes of a prompt, linked to what came about by expansion, too.

    An output of a node that was expanded is one of a node that it was expanded into. And an object that stands in an
    input, where others have a link, is one that the expanded node had.
    """
    nodes = {name: {"inputs": dict(node.get("inputs", {}))} for name, node in prompt.nodes.items()}
    for child, parent in prompt.parents.items():
        if parent in nodes:
            nodes[parent]["inputs"][f"expanded into {child}"] = [child, 0]
        if child in nodes and not all(map(_is_plain, nodes[child]["inputs"].values())):
            nodes[child]["inputs"]["expanded from"] = [parent, 0]
    return nodes


def _is_plain(value: Any) -> bool:
    """Tell whether a value is JSON, and not an object that a node has made."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        yield from _strings(list(value.values()))


def folders_with(name: str) -> dict[str, Path]:
    """Return ComfyUI's kind of folder → the file of a name in there, for all that have one."""
    found = {f: folder_paths.get_full_path(f, name) for f in list(folder_paths.folder_names_and_paths)}
    return {folder: Path(path) for folder, path in found.items() if path is not None}
