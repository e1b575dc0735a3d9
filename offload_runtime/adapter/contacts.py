"""Every attribute of ComfyUI that we rely on, in one table, and what this ComfyUI lacks of it.

ComfyUI promises none of them. A missing one is a sentence ("left to ComfyUI, because …") before anything is attached,
never an error inside a load. What belongs to the version is looked up once; what a patcher or a model is given when it
is made is looked up on that one, when it is placed. `tests/comfy/test_contacts_table.py` reads our code and holds the
table complete.

All of it is there in 0.3.75 (dynamic VRAM excepted, which came later) and in 0.33, and, as far as its source could be
read, in 0.38.1: nothing has been renamed. Not read there: `patcher_extension`, `memory_management` and
`comfy_execution.utils`, whose names were seen in use elsewhere in 0.38.1, except `get_executing_context`. The flag
`--normalvram` is gone there; flags are asked for by name, and a missing one was not given.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import re
import weakref
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from ..errors import IncompatibleError

if TYPE_CHECKING:
    from .handles import Handle


class Group(Enum):
    """Who relies on a contact."""

    LOADER = "the Loader and the report: without these nothing can be placed at all"
    EVERY = "what every backend puts on a patcher; reading layers from their file needs no more"
    STREAM = "layers out of slots on an accelerator"
    DYNAMIC = "ComfyUI's dynamic VRAM"
    CPU = "computing on the CPU where there is an accelerator"
    PINS = "pinned memory"
    NODE = "which node runs now"
    PROMPT = "which prompt that node is in"
    DEMAND = "what a sampler asks for"
    STEPS = "when a diffusion model computes"
    FACTS = "what is known about the machine and about a component"


class Contact(NamedTuple):
    """Attributes of one thing of ComfyUI.

    Attributes:
        place: a module, a class, or one of `OBJECTS`.
        names: its attributes; those in brackets behind one are parameters of it, `!` when there may be no others.
        use: what we use them for.
        without: what happens without them; "" where they are needed.
    """

    place: str
    names: str
    use: str
    without: str = ""

    def each(self) -> Iterator[tuple[str, list[str], bool]]:
        """Yield name, parameters, and whether there may be no others."""
        for name, parameters, exact in re.findall(r"(\w+)(?:\(([\w,]*)(!?)\))?", self.names):
            yield name, [p for p in parameters.split(",") if p], bool(exact)


_PATCHER = "comfy.model_patcher.ModelPatcher"
_DYNAMIC = "comfy.model_patcher.ModelPatcherDynamic"
_MM = "comfy.model_management"
_PAGES = "comfy_aimdo.model_vbar.ModelVBAR"

OBJECTS = {
    "patcher": "its patcher",
    "patcher.model": "its model",
    "module": "its modules",
    "node": "a class of nodes",
    "clip": "this CLIP",
    "vae": "this VAE",
    "clip_vision": "this CLIP_VISION",
    "control_net": "this CONTROL_NET",
}
"""Places that are no part of the version but of what is placed → how they are called."""

CONTACTS: Mapping[Group, tuple[Contact, ...]] = {
    Group.LOADER: (
        Contact(_MM, "is_device_cpu get_torch_device get_total_memory get_free_memory", "the machine"),
        Contact(_MM, "current_loaded_models", "who is loaded"),
        Contact(_MM, "throw_exception_if_processing_interrupted", "stopping while weights are stored"),
        Contact(f"{_MM}.LoadedModel", "model device", "who is loaded, and where"),
        Contact(_PATCHER, "loaded_size clone is_clone", "the placed copy, and how much of it is loaded"),
        Contact("comfy.patcher_extension", "CallbacksMP PatcherInjection(inject,eject)", "imported"),
        Contact("comfy.cli_args", "args parser", "ComfyUI's command line"),
        Contact("comfy.utils", "ProgressBar", "the Loader's progress"),
        Contact("comfy.ops", "disable_weight_init manual_cast", "operations that convert their weight"),
        Contact("comfy.float", "stochastic_rounding", "the rounding of a patched weight"),
        Contact(
            "folder_paths",
            "folder_names_and_paths get_full_path get_user_directory get_temp_directory",
            "model files, policy files, the layer store, what was learnt",
        ),
        Contact("patcher", "model load_device clone", "what is placed"),
        Contact("clip", "clone", "the placed copy"),
        Contact("control_net", "copy control_model_wrapped control_model", "the placed copy"),
    ),
    Group.EVERY: (
        Contact(_PATCHER, "set_attachments set_injections", "what a patcher carries"),
        Contact(_PATCHER, "add_callback_with_key remove_callbacks_with_key", "hearing of clones and loads"),
        Contact("comfy.patcher_extension.CallbacksMP", "ON_CLONE ON_DETACH ON_LOAD", "hearing of those"),
        Contact("patcher", "attachments injections is_injected skip_injection size", "the way on and off"),
    ),
    Group.STREAM: (
        # The ones that are replaced on the instance: core calls ours with whatever its own take.
        Contact(_PATCHER, "partially_load(device_to,extra_memory,force_patch_weights!)", "replaced"),
        Contact(_PATCHER, "model_size(!) loaded_size(!) pin_weight_to_device(key!)", "replaced"),
        Contact(_PATCHER, "partially_unload(device_to,memory_to_free) _load_list", "replaced"),
        Contact(_PATCHER, "patch_model(load_weights) unpatch_model(unpatch_weights)", "loading"),
        Contact(_PATCHER, "unpin_weight detach", "giving back"),
        Contact(_PATCHER, "patch_weight_to_device", "saving what is not on the card"),
        Contact(_MM, "load_models_gpu", "loading as ComfyUI does by itself"),
        Contact(_MM, "minimum_inference_memory NUM_STREAMS vram_state VRAMState", "the room that core plans"),
        Contact(f"{_MM}.VRAMState", "NO_VRAM", "--novram"),
        Contact("patcher", "patches patches_uuid forced_hooks hook_patches object_patches_backup", "patches"),
        Contact("patcher", "pinned offload_device is_clip", "where its weights wait"),
        Contact(
            "patcher.model",
            "model_loaded_weight_memory model_lowvram current_weight_patches_uuid",
            "what core knows to be loaded",
        ),
    ),
    Group.DYNAMIC: (
        Contact(_DYNAMIC, "is_dynamic", "telling it from a legacy patcher"),
        Contact("comfy.model_patcher.LowVramPatch", "memory_required", "the buffers of patches"),
        Contact(_MM, "NUM_STREAMS", "how many buffers there are"),
        Contact(_PAGES, "base_addr loaded_size", "which pages a weight lies on, and how many are there"),
        Contact(_PAGES, "prioritize deprioritize", "whose pages go first", "the report says so"),
        Contact(_PAGES, "set_watermark get_watermark get_residency", "budgets", "the report says so"),
        Contact("patcher.model", "dynamic_vbars model_loaded_weight_memory", "the pages of a model"),
        Contact(_DYNAMIC, "pinned_memory_size loaded_ram_size", "copies that it keeps on the host"),
        Contact("module", "_v", "the addresses of weights: (pages, address, bytes)", "set by a load"),
        Contact("module", "weight_lowvram_function bias_lowvram_function", "patches", "set by a load"),
        Contact("module", "_model_dtype", "the type that a weight is cast to", "set by a load"),
    ),
    Group.CPU: (
        Contact(_MM, "free_memory(keep_loaded)", "unloading one model"),
        Contact(_PATCHER, "is_clone unpatch_model", "unloading one model"),
        Contact("patcher", "offload_device", "moving"),
        Contact("patcher.model", "device", "where it is"),
        Contact("clip", "cond_stage_model", "the model that computes"),
        Contact("vae", "first_stage_model device", "the model that computes, and where"),
        Contact("clip_vision", "model load_device", "the model that computes, and where"),
    ),
    Group.PINS: (
        Contact(_MM, "pin_memory unpin_memory MAX_PINNED_MEMORY TOTAL_PINNED_MEMORY", "core's account"),
    ),
    Group.NODE: (
        Contact("comfy_execution.utils", "get_executing_context", "the executor"),
        Contact("comfy_execution.utils.ExecutionContext", "prompt_id node_id", "the executor"),
    ),
    Group.PROMPT: (
        Contact("comfy_execution.progress", "get_progress_state", "the executor"),
        Contact("comfy_execution.progress.ProgressRegistry", "prompt_id dynprompt", "the executor"),
        Contact("comfy_execution.graph.DynamicPrompt", "all_node_ids get_node has_node", "the prompt"),
    ),
    Group.DEMAND: (
        Contact(_PATCHER, "add_wrapper_with_key remove_wrappers_with_key", "hearing of samplings"),
        Contact("comfy.patcher_extension.WrappersMP", "PREPARE_SAMPLING", "hearing of samplings"),
        Contact("comfy.sampler_helpers", "estimate_memory(model,noise_shape,conds)", "what they ask for"),
    ),
    Group.STEPS: (
        Contact(_PATCHER, "add_wrapper_with_key remove_wrappers_with_key", "hearing of steps"),
        Contact("comfy.patcher_extension.WrappersMP", "APPLY_MODEL", "hearing of steps"),
    ),
    Group.FACTS: (
        Contact(_MM, "minimum_inference_memory", "the reserve for activations", "what it was in 0.38.1"),
        Contact(_MM, "vram_state", "memory that is shared with the CPU", "taken for not shared"),
        Contact(_MM, "text_encoder_device vae_device", "where what is not placed computes", "on the device"),
        Contact("comfy.memory_management", "aimdo_enabled", "dynamic VRAM", "taken for off"),
        Contact(f"{_MM}.LoadedModel", "model_finalizer", "telling loads apart", "uses count one by one"),
        Contact("patcher", "is_dynamic", "telling dynamic from legacy", "legacy"),
        Contact("patcher", "is_clip", "encoders of one round", "uses count one by one"),
        Contact("patcher", "pinned", "pinned bytes", "none"),
        Contact("module", "comfy_patched_weights", "whether it is as it is saved", "patched as it is saved"),
        Contact("patcher", "cached_patcher_init", "loading it a second time, for the CPU", "not on the CPU"),
        Contact("patcher.model", "dynamic_vbars", "pages on the device", "none"),
        Contact("comfyui_version", "__version__", "lessons of each version", "of unknown version"),
        Contact("vae", "disable_offload", "whether it may be moved", "it may"),
        Contact("vae", "latent_dim latent_channels output_channels not_video", "its name", "`vae`"),
        Contact("vae", "extra_1d_channel memory_used_decode memory_used_encode", "its name", "`vae`"),
        Contact("module", "comfy_cast_weights prev_comfy_cast_weights", "brought by core", "by us"),
        Contact("module", "weight_function", "patches", "none"),
        Contact("node", "RETURN_TYPES OUTPUT_NODE", "what a prompt uses", "only what is connected counts"),
        Contact("patcher.model", "diffusion_model", "telling a loaded model's kind", "by its file"),
    ),
}
"""Who relies on what."""


@functools.cache
def missing(group: Group) -> str:
    """Return what this ComfyUI lacks of what a group needs, as a clause (`this ComfyUI has no …`), or ""."""
    lacks = [
        lack
        for contact in CONTACTS[group]
        if contact.place not in OBJECTS and not contact.without
        for lack in _lacks(contact)
    ]
    return f"this ComfyUI has no {' or '.join(dict.fromkeys(lacks))}" if lacks else ""


def missing_on(group: Group, patcher: Any, slot: str = "", value: Any = None) -> str:
    """Return what one object lacks of what a group needs, as a clause, or "".

    Args:
        group: who is going to rely on it.
        patcher: the patcher.
        slot: the socket of the object that holds it, in lower case.
        value: that object.
    """
    there = {"patcher": patcher, "patcher.model": getattr(patcher, "model", None), slot: value}
    for contact in CONTACTS[group]:
        if contact.place in OBJECTS and contact.place in there and not contact.without:
            for name, _, _ in contact.each():
                if not hasattr(there[contact.place], name):
                    return f"{OBJECTS[contact.place]} has no {name}"
    return _why_not_listed(patcher) if group is Group.STREAM else ""


def lacking(groups: Iterator[Group], handle: Handle) -> str:
    """Return what is lacked first of what some groups need for one component, as a clause, or ""."""
    clauses = (
        missing(group) or missing_on(group, handle.patcher, handle.socket, handle.value) for group in groups
    )
    return next(filter(None, clauses), "")


def require() -> None:
    """Make sure that components can be placed in this ComfyUI.

    Raises:
        IncompatibleError: they cannot, and nothing else of the adapter can be imported.
    """
    lack = missing(Group.LOADER)
    if lack:
        raise IncompatibleError(
            f"Layerwise Offload cannot place anything, because {lack}; update the pack or ComfyUI, or bypass the "
            "pack's nodes"
        )


def _lacks(contact: Contact) -> Iterator[str]:
    owner, short = _find(contact.place), contact.place.rpartition(".")[2]
    if owner is None:
        yield contact.place
        return
    for name, parameters, exact in contact.each():
        if not _has(owner, name):
            yield f"{short}.{name}"
        elif parameters or exact:
            found = _parameters(getattr(owner, name))
            wrong = [p for p in parameters if p not in found]
            if exact:
                wrong += [f"more than {', '.join(parameters) or 'itself'}"] * (len(found) > len(parameters))
            if wrong:
                yield f"{short}.{name} as this pack knows it ({', '.join(wrong)})"


def _find(place: str) -> Any | None:
    """Return a module or a class, or None where there is none."""
    module, _, name = place.rpartition(".")
    try:
        return importlib.import_module(place)
    except ImportError:
        return getattr(_find(module), name, None) if module else None


def _has(owner: Any, name: str) -> bool:
    """Tell whether a module or a class has an attribute, or a class's methods give one to its instances."""
    if hasattr(owner, name):
        return True
    methods = (method for kind in getattr(owner, "__mro__", ()) for method in vars(kind).values())
    return any(
        step.opname == "STORE_ATTR" and step.argval == name
        for method in methods
        if inspect.isfunction(method)
        for step in dis.get_instructions(method)
    )


def _parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


_readable: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes of patchers whose list of what may be placed was seen to be as we know it; making one takes a moment."""


def _why_not_listed(patcher: Any) -> str:
    """Return why core's list of what may be placed cannot be read, as a clause, or ""."""
    kind, parts = type(patcher), (int | float, int | float, str, nn.Module)  # cost, bytes, name, module
    if kind in _readable:
        return ""
    for entry in kind._load_list(patcher)[:1]:
        if len(entry) != len(parts) + 1 or not all(map(isinstance, entry, parts)):  # its parameters come last
            return "its patcher lists its operations (_load_list) in a form that this pack does not know"
        _readable.add(kind)
    return ""
