"""Machines, components and sources for the tests: sizes in GB, everything else as it mostly is."""

from __future__ import annotations

from typing import Any

from offload_runtime.policy import ComponentFacts, Decision, MachineFacts, Policy, Source, SourceKind, resolve

GB = 1024**3


def gb(amount: float) -> int:
    """Return an amount of GB in bytes."""
    return int(amount * GB)


def machine(vram: float = 24, *flags: str, ram: float = 64, **facts: Any) -> MachineFacts:
    """Return a machine with a CUDA card that keeps 1.2 GB for activations."""
    given = {
        "device": "cuda:0",
        "accelerator": True,
        "vram_total": gb(vram),
        "vram_free": gb(vram),
        "ram_total": gb(ram),
        "ram_available": gb(ram),
        "inference_reserve": gb(1.2),
        "flags": flags,
    }
    return MachineFacts(**(given | facts))


def cpu_machine(*flags: str, ram: float = 64, **facts: Any) -> MachineFacts:
    """Return a machine without an accelerator."""
    none = {"device": "cpu", "accelerator": False, "vram_total": 0, "vram_free": 0, "inference_reserve": 0}
    return machine(0, *flags, ram=ram, **(none | {"accelerators": 0} | facts))


def component(name: str, size: float = 1, layers: int = 24, **facts: Any) -> ComponentFacts:
    """Return a component whose layers hold all but a twentieth of its weights."""
    share = facts.pop("layer_bytes", gb(size) * 19 // 20 if layers else 0)
    return ComponentFacts(name, facts.pop("model", name), gb(size), layers, share, **facts)


def source(kind: SourceKind = SourceKind.NODE, place: str = "node 1") -> Source:
    """Return a source of a kind."""
    return Source(kind, place)


T5, CLIP_L = component("text_encoder", 9.5), component("text_encoder_2", 0.25, 12)
FLUX, VAE = component("diffusion_model", 12, 57), component("vae", 0.3, 8)


NODE = Source(SourceKind.NODE, "Placement Policy, node 1")
OVERRIDE = Source(SourceKind.OVERRIDE, "Set Placement, node 2")


def asks(placement: str = "auto", selector: str = "all", **settings: str) -> Policy:
    """Return what a node asks for."""
    return Policy.for_component(NODE, selector, placement=placement, **settings)


def one(policy: Policy, facts: MachineFacts, component: ComponentFacts = T5) -> Decision:
    """Return what is decided for a component alone."""
    return resolve(policy, facts, (component,))[component.name]
