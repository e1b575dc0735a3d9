"""What else a prompt uses beside what comes through our nodes: every model, its file, and what is loaded of it now.

The prompt says it all before anything runs: who makes a model names its file, and the file's header says how large the
weights are. What ComfyUI converts them to on the way is not guessed: the bytes of the file count, until a model is
loaded that says otherwise. What the prompt does not use does not count, also where another workflow has left it loaded:
it is evicted once, and does not come back.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import comfy.model_management as mm
from torch import nn

from ..engine import file_sizes, parameter_bytes
from ..policy import NOT_SAID, BystanderFacts, ModelSource, NodeKind, PromptModels, vae_use
from .record import record_of
from .weight_files import Prompt, folders_with, loaded_from, weight_names

_GROUPS = {
    "MODEL": "dit",
    "CONTROL_NET": "dit",  # computes at every step, with the diffusion model
    "MODEL_PATCH": "dit",
    "CLIP": "text_encoder",
    "CLIP_VISION": "image_encoder",
    "VAE": "vae",
}
"""Type → the group of components that such a model is worth as much as."""

_MODEL_TYPES = ("MODEL", "CLIP", "VAE", "CLIP_VISION", "CONTROL_NET")
"""Types of which a model is one even where no file is named for it."""

_FOLDERS = {
    "diffusion_models": "MODEL",
    "unet": "MODEL",
    "text_encoders": "CLIP",
    "clip": "CLIP",
    "vae": "VAE",
    "clip_vision": "CLIP_VISION",
    "controlnet": "CONTROL_NET",
    "style_models": "STYLE_MODEL",
    "upscale_models": "UPSCALE_MODEL",
}
"""ComfyUI's kind of folder → what is loaded from there."""

_PARTS = {
    "model.diffusion_model.": "MODEL",
    "first_stage_model.": "VAE",
    "vae.": "VAE",
    "cond_stage_model.": "CLIP",
    "conditioner.": "CLIP",
    "text_encoders.": "CLIP",
}
"""How the names of weights begin in a checkpoint → what they are of."""

_CONVERTED = 2.2
"""How many times larger or smaller a model may be than its file, and still be the one in it: half or twice the bits."""


class Bystander(NamedTuple):
    """A model that comes through no node of ours.

    Attributes:
        facts: what a plan may know of it.
        type: the type that it is handed on by, or "".
        files: those that its weights are in.
        mixed: whether they hold other models, too, and do not say what is of which.
    """

    facts: BystanderFacts
    type: str = ""
    files: tuple[Path, ...] = ()
    mixed: bool = False


class Around(NamedTuple):
    """What else a prompt uses.

    Attributes:
        others: the models that come through no node of ours, as the prompt and the files tell.
        together: whether the diffusion model that comes through our node runs at the same time as another one.
    """

    others: tuple[Bystander, ...] = ()
    together: bool = False


NOTHING_AROUND = Around()
"""What is known without a prompt."""


def around(prompt: Prompt, node_id: str) -> Around:
    """Return what else a prompt uses beside the models that come through one of our nodes, or one in front of it.

    Args:
        prompt: the prompt.
        node_id: our node.
    """
    models = PromptModels(prompt.nodes, node_kinds(prompt.nodes), prompt.parents)
    used, together = models.used(), models.together()
    placing = models.placing_before(node_id)
    here = models.taken_by(node_id) | {source for source in used if source.node == node_id}
    ours = here.union(*map(models.taken_by, placing), (source for source in used if source.node in placing))
    of_ours = {(s.type, file.path) for s in ours for file in _files(_inputs(prompt, s.node), {s.type})}
    others: dict[tuple[object, ...], Bystander] = {}
    for node in sorted(models.running - placing):
        sources = [source for source in used if source.node == node]
        for other in _brought_in(prompt, models, node, sources, ours):
            again = bool(other.files) and all((other.type, file) in of_ours for file in other.files)
            if not again:  # else a node like one of ours names it, and ComfyUI loads it once for both
                described = _described(other, prompt, sources, together)
                others.setdefault((other.type, other.files or other.facts.name), described)
    return Around(tuple(others.values()), any(source in together for source in here))


def bystanders_now(around: Around, ours: Sequence[nn.Module]) -> tuple[BystanderFacts, ...]:
    """Return the facts of what else a prompt uses, with what is loaded of it now.

    Args:
        around: what the prompt says.
        ours: the models that are placed by us, now or before; what they have of a file is not counted again.
    """
    loaded = _loaded_beside(ours)
    facts = []
    for other in around.others:
        live = next((one for one in loaded if one.is_of(other)), None)
        if live is not None:
            loaded.remove(live)
            facts.append(replace(other.facts, bytes=live.bytes))
        elif other.mixed:
            had = sum(parameter_bytes(m) for m in ours if set(other.files) & set(record_of(m).files))
            facts.append(replace(other.facts, bytes=max(0, other.facts.bytes - had)))
        else:
            facts.append(other.facts)
    return tuple(facts)


def node_kinds(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, NodeKind]:
    """Return what ComfyUI knows of the classes of some nodes."""
    classes = getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", {})
    names = {str(node.get("class_type")) for node in nodes.values()}
    return {name: _kind(classes[name]) for name in names if name in classes}


def _kind(node_class: Any) -> NodeKind:
    types = getattr(node_class, "RETURN_TYPES", None) or ()
    outputs = tuple(str(type_) if isinstance(type_, str) else "COMBO" for type_ in types)
    return NodeKind(outputs, bool(getattr(node_class, "OUTPUT_NODE", False)))


def _inputs(prompt: Prompt, node: str) -> Mapping[str, Any]:
    inputs: Mapping[str, Any] = prompt.nodes[node].get("inputs", {})
    return inputs


class _File(NamedTuple):
    """A file that a node names, and the type of model that ComfyUI's folder for it is for; "" for any."""

    path: Path
    type: str


def _files(inputs: Mapping[str, Any], types: Collection[str]) -> list[_File]:
    """Return the files that a node names; of several with one name that which a node would load for some types."""
    found: dict[_File, None] = {}
    for name in weight_names(inputs):
        there = [_File(path, _FOLDERS.get(folder, "")) for folder, path in folders_with(name).items()]
        there.sort(key=lambda file: (file.type not in types, file.type != ""))
        found.update(dict.fromkeys(there[:1]))
    return list(found)


def _brought_in(
    prompt: Prompt,
    models: PromptModels,
    node: str,
    sources: Sequence[ModelSource],
    ours: Collection[ModelSource],
) -> Iterator[Bystander]:
    """Yield what one running node brings in: the models that it makes, or the files that it adds to others."""
    types = list(dict.fromkeys(source.type for source in sources))
    rest = list(dict.fromkeys(source.type for source in sources if source not in ours))
    files = _files(_inputs(prompt, node), types)
    if not sources:
        # A LoRA is merged into the weights as they are loaded, or into each that passes: ComfyUI keeps it in host
        # memory. What makes no model either, and hands none on, loads one for itself.
        on_host = models.hands_on(node)
        if models.makes_models(node) and not on_host:
            return  # nobody uses what it makes
        for file in files:
            yield Bystander(
                BystanderFacts(file.path.name, _size(file.path), on_host=on_host), "", (file.path,)
            )
    elif not files:
        kind = prompt.nodes[node].get("class_type")
        for type_ in rest:
            if type_ in _MODEL_TYPES:
                yield Bystander(BystanderFacts(f"the {type_} of node {node} ({kind})", 0), type_)
    else:
        yield from _models_in(files, types, rest)


def _models_in(files: Sequence[_File], types: Sequence[str], rest: Sequence[str]) -> Iterator[Bystander]:
    """Yield the models in the files of one node.

    Args:
        files: the files.
        types: the types of the models that the node makes and that are used.
        rest: those of them that do not come through our nodes.
    """
    alone: dict[str, list[Path]] = {}
    for file in files:
        if file.type in types or len(types) == 1:
            alone.setdefault(file.type if file.type in types else types[0], []).append(file.path)
        else:
            yield from _parts_of(file.path, rest)
    for type_ in rest:
        if paths := alone.get(type_):
            name = " + ".join(path.name for path in paths)
            yield Bystander(BystanderFacts(name, sum(map(_size, paths))), type_, tuple(paths))


def _parts_of(path: Path, types: Sequence[str]) -> Iterator[Bystander]:
    """Yield the models of some types in a checkpoint; all as one, where it does not say what is of which."""
    sizes = file_sizes(path, tuple(_PARTS))
    if sizes is None or not types:
        return
    for type_ in types:
        size = sum(count for prefix, count in sizes.parts.items() if _PARTS[prefix] == type_)
        if size:
            yield Bystander(BystanderFacts(f"the {type_} of {path.name}", size), type_, (path,))
    if not sizes.parts:
        type_ = "MODEL" if "MODEL" in types else types[0]
        yield Bystander(BystanderFacts(path.name, sizes.total), type_, (path,), mixed=True)


def _size(path: Path) -> int:
    sizes = file_sizes(path)
    return sizes.total if sizes is not None else 0


def _described(
    other: Bystander, prompt: Prompt, sources: Sequence[ModelSource], together: Collection[ModelSource]
) -> Bystander:
    """Say of a model what its type, its node and the rest of the prompt tell."""
    source = next((source for source in sources if source.type == other.type), None)
    if source is None:
        return other
    use = vae_use(prompt.nodes, source.node, source.output) if source.type == "VAE" else NOT_SAID
    facts = replace(
        other.facts,
        group=_GROUPS.get(source.type),
        on_host=_stays_on_host(source.type, _inputs(prompt, source.node)),
        in_turn=source.type == "MODEL" and source not in together,
        video=use.frames > 1 if use.frames is not None else bool(use.video),
    )
    return other._replace(facts=facts)


def _stays_on_host(type_: str, inputs: Mapping[str, Any]) -> bool:
    """Tell whether ComfyUI computes with a model on the CPU; a style model is never loaded to the device."""
    if type_ in ("CLIP", "CLIP_VISION"):
        return inputs.get("device") == "cpu" or _is_cpu("text_encoder_device")
    return type_ == "STYLE_MODEL" or (type_ == "VAE" and _is_cpu("vae_device"))


def _is_cpu(chooser: str) -> bool:
    """Tell whether ComfyUI chooses the CPU for a kind of model."""
    choose = getattr(mm, chooser, None)
    return choose is not None and bool(mm.is_device_cpu(choose()))


class _Loaded(NamedTuple):
    """A model that ComfyUI has loaded."""

    type: str
    bytes: int
    files: frozenset[Path]

    def is_of(self, other: Bystander) -> bool:
        """Tell whether it is a model that a prompt names: by its file, or by its kind and size."""
        if self.files & set(other.files):
            return not self.type or self.type == other.type
        if not self.type or self.type != other.type:
            return False
        size = other.facts.bytes
        return not size or (not other.mixed and size / _CONVERTED < self.bytes < size * _CONVERTED)


def _loaded_beside(ours: Sequence[nn.Module]) -> list[_Loaded]:
    """Return what ComfyUI has loaded and is not ours."""
    found = {}
    for loaded in mm.current_loaded_models:
        patcher = loaded.model
        if patcher is None or any(patcher.model is model for model in ours):
            continue
        model = patcher.model
        type_ = "CLIP" if getattr(patcher, "is_clip", False) else "MODEL" * hasattr(model, "diffusion_model")
        files = frozenset((*loaded_from(patcher), *record_of(model).files))
        found[id(model)] = _Loaded(type_, parameter_bytes(model), files)
    return list(found.values())
