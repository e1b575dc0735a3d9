"""SGLang-Diffusion's flag names in a policy file, for people who bring their settings with them.

They mean what they mean there, with its known holes closed: a value of null is not explicit, dashes and
underscores are alike, numbered components follow their base name, and a list of groups is looked up whole.
Precedence among them, from low to high: the `*_cpu_offload` switches, `cpu_offload_components`, the layerwise
list, `component_residency`. The pack's own keys stand above all of them. VAE switches mean the `vae` group: audio
VAEs and vocoders are placed by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import PolicyError
from ..arguments import Argument, Source, SourceKind
from ..components import HostTier, Placement
from ..hints import suggest
from ..kinds import SWITCH, is_set
from ..policy import Policy
from ..selectors import parse_selectors
from ..settings import Setting, parse_value
from .reader import RawFile

_SWITCHES = {
    "dit_cpu_offload": "dit",
    "text_encoder_cpu_offload": "text_encoder",
    "image_encoder_cpu_offload": "image_encoder",
    "vae_cpu_offload": "vae",
}
LAYERWISE_LISTS = ("layerwise_offload_components", "layerwise_offload_modules")
RESIDENCY = {
    "resident": Placement.RESIDENT,
    "component_offload": Placement.OFFLOAD,
    "snapshot_offload": Placement.OFFLOAD,
    "layerwise_offload": Placement.LAYERWISE,
}
_RANK = {
    **dict.fromkeys(_SWITCHES, 1),
    "performance_mode": 1,
    "pin_cpu_memory": 1,
    "cpu_offload_components": 2,
    "dit_layerwise_offload": 3,  # off means resident, of rank 0: unless another key says more
    **dict.fromkeys(LAYERWISE_LISTS, 3),
    "component_residency": 4,
}
LEGACY_KEYS = tuple(_RANK)
"""The keys that are read here, spelled with underscores."""

WITHOUT_MEANING = {
    **dict.fromkeys(
        ("dit_offload_prefetch_size", "layerwise_prefetch_size"),
        "layers are always copied one ahead, and memory to spare keeps layers on the card instead",
    ),
    **dict.fromkeys(
        ("dit_layerwise_resident_layers", "layerwise_resident_layers"),
        "vram_budget says in bytes how much of a component may stay on the card",
    ),
    **dict.fromkeys(
        (
            "dit_layerwise_residency_policy",
            "dit_layerwise_residency_lifetime",
            "layerwise_residency_policy",
            "layerwise_residency_lifetime",
        ),
        "which layers stay on the card follows from the order in which they run",
    ),
    **dict.fromkeys(
        (
            "use_fsdp_inference",
            "num_gpus",
            "tp_size",
            "sp_degree",
            "ulysses_degree",
            "ring_degree",
            "enable_cfg_parallel",
        ),
        "ComfyUI does not split a model over several accelerators",
    ),
    **dict.fromkeys(
        (
            "offload_during_compile",
            "direct_gpu_weight_loading",
            "warmup_mode",
            "enable_torch_compile",
            "attention_backend",
            "model_path",
        ),
        "how models are loaded, compiled and run is up to ComfyUI and its nodes",
    ),
}
"""Keys of SGLang's that nothing here answers to → why."""


def canonical_key(key: str) -> str:
    """Return a key without leading dashes and with underscores, as its flag is looked up."""
    return key.strip().lstrip("-").replace("-", "_").lower()


def is_legacy(key: str) -> bool:
    """Tell whether a key of a file is one of SGLang's."""
    return canonical_key(key) in LEGACY_KEYS


def without_meaning(key: str) -> str:
    """Return why a key of SGLang's has no meaning here, or "" for any other key."""
    return WITHOUT_MEANING.get(canonical_key(key), "")


def legacy_policy(file: RawFile) -> Policy:
    """Return what the legacy keys of a file ask for, the lowest precedence first.

    Raises:
        PolicyError: a value cannot be understood; with line and column.
    """
    ranked: list[tuple[int, Argument]] = []
    for written, value in file.values.items():
        key = canonical_key(written)
        if key not in _RANK:
            continue
        try:
            for setting, selector, meant in _read(key, value):
                rank = 0 if (key, meant) == ("dit_layerwise_offload", Placement.RESIDENT) else _RANK[key]
                source = Source(SourceKind.FILE, f"{file.name}, rank {rank}")
                ranked.append((rank, Argument(setting, selector, meant, source)))
        except PolicyError as error:
            raise file.error(str(error), (written,)) from None
    return Policy(tuple(argument for _, argument in sorted(ranked, key=lambda entry: entry[0])))


def _read(key: str, value: Any) -> Iterator[tuple[Setting, str, Any]]:
    if not is_set(value) and not isinstance(value, (list, dict)):
        return
    if key == "performance_mode":
        yield Setting.MODE, "all", parse_value(Setting.MODE, _word(key, value), key)
    elif key == "component_residency":
        yield from _residency(value)
    elif key == "cpu_offload_components":
        selectors = _selectors(key, value)
        yield from ((Setting.PLACEMENT, name, Placement.OFFLOAD) for name in selectors)
        if not selectors:  # “none”: nothing is offloaded
            yield Setting.PLACEMENT, "all", Placement.RESIDENT
    elif key in LAYERWISE_LISTS:
        for name in _selectors(key, value):
            yield Setting.PLACEMENT, name, Placement.LAYERWISE
    else:
        yield _switch(key, SWITCH.parse(_word(key, value), key))


def _switch(key: str, on: bool) -> tuple[Setting, str, Any]:
    if key == "pin_cpu_memory":
        return Setting.HOST, "all", HostTier.PINNED if on else HostTier.STAGED
    if key == "dit_layerwise_offload":
        return Setting.PLACEMENT, "dit", Placement.LAYERWISE if on else Placement.RESIDENT
    return Setting.PLACEMENT, _SWITCHES[key], Placement.OFFLOAD if on else Placement.RESIDENT


def _residency(value: Any) -> Iterator[tuple[Setting, str, Placement]]:
    key = "component_residency"
    if isinstance(value, dict):
        pairs: Iterable[tuple[str, Any]] = value.items()
    else:
        entries = [entry for entry in _joined(key, value).split(",") if entry.strip()]
        wrong = next((entry for entry in entries if "=" not in entry), None)
        if wrong is not None:
            raise PolicyError(f"{key}: “{wrong.strip()[:60]}” is not COMPONENT=MODE")
        pairs = [(entry.split("=", 1)[0], entry.split("=", 1)[1]) for entry in entries]
    for selector, mode in pairs:
        names = parse_selectors(selector)
        if not is_set(mode) and not isinstance(mode, (list, dict)):
            continue
        word = _word(key, mode).strip().lower().replace("-", "_")
        if word not in RESIDENCY:
            raise PolicyError(f"{key}: “{word[:60]}” is not a residency mode; {suggest(word, RESIDENCY)}")
        for name in names:
            yield Setting.PLACEMENT, name, RESIDENCY[word]


def _selectors(key: str, value: Any) -> tuple[str, ...]:
    return parse_selectors(_joined(key, value)) if value != [] else ()  # an empty list says none


def _joined(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_word(key, item) for item in value)
    return _word(key, value)


def _word(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise PolicyError(f"{key}: a word or a list of words is needed here")
