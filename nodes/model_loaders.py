"""ComfyUI's own loaders, which place while they load: the weights stay in the model file until they are used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..offload_runtime.policy import NOT_SAID, Policy, vae_use
from ..offload_runtime.policy.files import DEFAULT_FILE
from . import sockets
from .compat import known_options
from .executed import MODEL_LOADERS, decided_here
from .policy_files import fingerprint, policy_folder
from .prompt import expanded_from, prompt_graph

if TYPE_CHECKING:
    from ..offload_runtime.adapter import Placements

_TOOLTIPS = {
    "clip_name": "The encoder to load, from ComfyUI's folder for its kind.",
    "clip_name1": "The first text encoder to load, from ComfyUI's folder text_encoders.",
    "clip_name2": "The second text encoder to load, from ComfyUI's folder text_encoders.",
    "type": "The kind of diffusion model that the text encoder is for, as in ComfyUI's loader.",
    "device": "Where ComfyUI computes it: default, or cpu. A policy says the same for every component.",
    "vae_name": "The VAE to load, from ComfyUI's folder vae.",
    "unet_name": "The diffusion model to load, from ComfyUI's folder diffusion_models.",
    "weight_dtype": "The type that weights are converted to, as in ComfyUI's loader. default: none, where it can be.",
    "ckpt_name": "The checkpoint to load, from ComfyUI's folder checkpoints.",
}
"""What ComfyUI's widgets are, where it does not say so itself."""


class _ModelLoader(io.ComfyNode):
    """What the loaders share. Each has the widgets and outputs of one of ComfyUI's own, and two inputs of ours.

    Attributes:
        NAME: what it is called.
        CORE: the id of ComfyUI's loader.
        HANDS_OUT: what that one loads, in the order of its outputs.
    """

    NAME: str
    CORE: str
    HANDS_OUT: tuple[str, ...]

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Take the widgets from ComfyUI's loader, as they are in this version."""
        return known_options(
            io.Schema,
            node_id=MODEL_LOADERS[cls.CORE],
            display_name=cls.NAME,
            category=sockets.CATEGORY,
            description="Loads as ComfyUI does, places what was loaded, and copies no weights into memory meanwhile: "
            "with layerwise they are read from their safetensors file when they are used.",
            search_aliases=["load model", "low ram", "low vram", "offload", "layerwise", "mmap"],
            inputs=[*_core_inputs(cls.CORE), *sockets.policy_inputs("loader of this pack")],
            outputs=sockets.placed_outputs(cls.HANDS_OUT),
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: Any) -> str:
        """Place again when the user's default policy has changed."""
        return fingerprint(DEFAULT_FILE)

    @classmethod
    def execute(
        cls, policy: Policy | None = None, placements: Placements | None = None, **values: Any
    ) -> io.NodeOutput:
        """Load as ComfyUI does, decide and attach."""
        from ..offload_runtime.adapter import (  # no start pays for it
            Placements,
            Prompt,
            around,
            load_and_place,
        )

        core = _core(cls.CORE)
        prompt, node_id = cls.hidden.dynprompt, cls.hidden.unique_id
        graph = prompt_graph(prompt)
        asked = policy_folder().user_default().extended(policy or Policy())
        use = vae_use(graph, node_id, cls.HANDS_OUT.index("vae")) if "vae" in cls.HANDS_OUT else NOT_SAID
        loaded, all_placements, count = load_and_place(
            lambda: getattr(core(), core.FUNCTION)(**values),
            cls.HANDS_OUT,
            values,
            asked,
            placements or Placements(),
            use,
            around(Prompt(graph, expanded_from(prompt)), node_id),
        )
        decided = decided_here(graph, node_id, asked, all_placements, count)
        return io.NodeOutput(*loaded, all_placements, ui={"placement_decisions": [decided]})


_SHORT = {"weight_dtype": "dtype"}
"""Names for which Nodes 2.0 of older frontends has no room."""


def _core(name: str) -> Any:
    """Return the class of one of ComfyUI's own nodes."""
    import nodes  # ComfyUI's, whose folder comes first

    return nodes.NODE_CLASS_MAPPINGS[name]


def _core_inputs(name: str) -> Iterator[io.Input]:
    """Yield the widgets of one of ComfyUI's loaders, which are all lists of words."""
    types = _core(name).INPUT_TYPES()
    for key, (words, *more) in [*types["required"].items(), *types.get("optional", {}).items()]:
        said = more[0] if more else {}
        yield known_options(
            io.Combo.Input,
            key,
            display_name=_SHORT.get(key),
            options=words if isinstance(words, list) else said["options"],
            optional=key not in types["required"],
            default=said.get("default"),
            tooltip=_TOOLTIPS.get(key) or said.get("tooltip"),
            advanced=said.get("advanced"),
        )


class LoadClipNode(_ModelLoader):
    """Load one text encoder."""

    NAME = "Load CLIP (Layerwise)"
    CORE = "CLIPLoader"
    HANDS_OUT = ("clip",)


class LoadDualClipNode(_ModelLoader):
    """Load two text encoders as one CLIP."""

    NAME = "Load Dual CLIP (Layerwise)"
    CORE = "DualCLIPLoader"
    HANDS_OUT = ("clip",)


class LoadVaeNode(_ModelLoader):
    """Load a VAE."""

    NAME = "Load VAE (Layerwise)"
    CORE = "VAELoader"
    HANDS_OUT = ("vae",)


class LoadClipVisionNode(_ModelLoader):
    """Load an image encoder."""

    NAME = "Load CLIP Vision (Layerwise)"
    CORE = "CLIPVisionLoader"
    HANDS_OUT = ("clip_vision",)


class LoadDiffusionModelNode(_ModelLoader):
    """Load a diffusion model."""

    NAME = "Load Diffusion Model (Layerwise)"
    CORE = "UNETLoader"
    HANDS_OUT = ("model",)


class LoadCheckpointNode(_ModelLoader):
    """Load a checkpoint."""

    NAME = "Load Checkpoint (Layerwise)"
    CORE = "CheckpointLoaderSimple"
    HANDS_OUT = ("model", "clip", "vae")


def model_loaders() -> list[type[io.ComfyNode]]:
    """Return the loaders of which this ComfyUI has its own, in the order of the menu."""
    core = getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", None)  # ComfyUI asks when it has its own
    ours = (
        LoadClipNode,
        LoadDualClipNode,
        LoadVaeNode,
        LoadClipVisionNode,
        LoadDiffusionModelNode,
        LoadCheckpointNode,
    )
    return [loader for loader in ours if core is None or loader.CORE in core]
