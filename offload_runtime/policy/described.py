"""Facts about a machine and a workflow that are only described in words: what ComfyUI would find there, and do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..errors import PolicyError
from .capabilities import PAGED, STREAMED, Capabilities, cannot_copy
from .command_line import FLAGS
from .components import base_name, is_encoder
from .facts import ComponentFacts, MachineFacts
from .hints import suggest
from .quantities import format_bytes, parse_size
from .selectors import normalize_selector

GB = 1024**3
COMPUTE_RESERVE = 8 * GB // 10
OTHERS_RESERVE = 4 * GB // 10
"""What ComfyUI keeps for activations, and on Linux for other programs unless `--reserve-vram` says otherwise."""

LAYERS = 24
LAYER_SHARE = 0.95
"""What is taken for a component whose layers are not given: the shape of a large encoder."""

VRAM, RAM = "12GB", "32GB"
"""The machine that is taken where nobody describes one."""

_VRAM_FLAGS = ("--gpu-only", "--highvram", "--normalvram", "--lowvram", "--novram", "--cpu")
_RIVALS = (
    _VRAM_FLAGS,
    *({f for f in FLAGS if f.endswith(end) and f != "--cpu-vae"} for end in ("-text-enc", "-unet", "-vae")),
    {f for f in FLAGS if f.startswith("--force")},
)
"""ComfyUI starts with one of each group at most."""

_NOT_DYNAMIC = ("--disable-dynamic-vram", "--highvram", "--gpu-only", "--novram", "--cpu")
"""With one of these ComfyUI has no dynamic VRAM, unless `--enable-dynamic-vram` forces it."""

_DYNAMIC = ("--enable-dynamic-vram", "--vram-headroom")
"""With one of these it has."""

_IN_GB = ("--reserve-vram", "--vram-headroom")
_WITH_NUMBER = ("--async-offload", "--directml")  # they may stand alone, too
_AMOUNT = re.compile(r"[0-9]{1,6}(\.[0-9]{0,9})?")
_NUMBER = re.compile(r"-?[0-9]{1,4}")
_COUNT = re.compile(r"[0-9]{1,2}")
_LAYERS = re.compile(r"[0-9]{1,4}")


def read_flags(text: str) -> tuple[str, ...]:
    """Return ComfyUI's flags as they were typed, each with its value behind it.

    Raises:
        PolicyError: ComfyUI would not start with them, or they say nothing about placements.
    """
    flags: list[str] = []
    for word in text.replace("=", " ").split():
        if word.startswith("--"):
            flags.append(word)
        elif flags:
            flags[-1] += f" {word}"
        else:
            raise PolicyError(f"--flags: “{word[:60]}” is not a flag of ComfyUI; they start with --")
    for flag in flags:
        _check_flag(*flag.split(" ", 1))
    names = [flag.split(" ", 1)[0] for flag in flags]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PolicyError(f"--flags: {twice} is there twice")
    for group in _RIVALS:
        rivals = [name for name in names if name in group]
        if len(rivals) > 1:
            raise PolicyError(f"--flags: ComfyUI starts with only one of {' and '.join(rivals)}")
    return tuple(flags)


def described_machine(
    *,
    vram: str | None = None,
    ram: str = RAM,
    reserve: str | None = None,
    vram_used: str | None = None,
    ram_used: str = "0B",
    accelerators: str = "1",
    flags: Sequence[str] = (),
    dynamic: bool = False,
    shared: bool = False,
) -> MachineFacts:
    """Return the facts of a machine that is described on a command line.

    Args:
        vram: device memory, such as `12GB`; `0B` for a machine without an accelerator.
        ram: host memory.
        reserve: device memory that ComfyUI keeps for activations, or None for its own choice.
        vram_used: device memory that other programs hold.
        ram_used: host memory that other programs hold.
        accelerators: how many accelerators the machine has; 0 for none.
        flags: ComfyUI's flags, as `read_flags` returns them.
        dynamic: whether ComfyUI has dynamic VRAM; some flags say so by themselves.
        shared: whether device and host memory are the same chips.

    Raises:
        PolicyError: an amount cannot be understood, or two of them cannot be true at once.
    """
    count = _count(accelerators)
    memory, taken = parse_size(ram, "--ram"), parse_size(ram_used, "--ram-used")
    if shared:
        _only_once(vram, "--vram", "--ram")
        _only_once(vram_used, "--vram-used", "--ram-used")
        total, others = memory, taken
    else:
        total, others = parse_size(vram or VRAM, "--vram"), parse_size(vram_used or "0B", "--vram-used")
        _within(others, total, "--vram-used")
    _within(taken, memory, "--ram-used")
    accelerator = total > 0 and count > 0 and _flag("--cpu", flags) is None
    paged = _dynamic_vram(dynamic, accelerator, shared, flags)
    kept = parse_size(reserve, "--reserve") if reserve is not None else _reserve(flags)
    if paged:
        kept += _gigabytes("--vram-headroom", flags) or 0
    directml = _flag("--directml", flags) is not None
    return MachineFacts(
        device=_device(accelerator, shared, directml),
        accelerator=accelerator,
        vram_total=total if accelerator else 0,
        vram_free=total - others if accelerator else 0,
        ram_total=memory,
        ram_available=memory - taken,
        inference_reserve=min(kept, total),
        vram_others=others if accelerator else 0,
        accelerators=count if accelerator else 0,
        shared_memory=accelerator and shared,
        dynamic_vram=paged,
        flags=tuple(flags),
    )


def described_components(text: str, machine: MachineFacts) -> tuple[ComponentFacts, ...]:
    """Read `text_encoder=9.5GB:24,vae=0.3GB`: name, size of the weights, and how many layers hold them.

    Raises:
        PolicyError: an entry cannot be understood, or a name is there twice.
    """
    components: dict[str, ComponentFacts] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, amount = entry.partition("=")
        if not equals:
            raise PolicyError(f"--components: “{entry[:60]}” is not NAME=SIZE, such as text_encoder=9.5GB")
        component = normalize_selector(name)
        if component in components:
            raise PolicyError(
                f"--components: {component} is there twice; number the second one {component}_2"
            )
        components[component] = _described(component, amount, machine)
    if not components:
        raise PolicyError("--components names nothing; write it as text_encoder=9.5GB,diffusion_model=12GB")
    return tuple(components.values())


def _described(component: str, amount: str, machine: MachineFacts) -> ComponentFacts:
    size, colon, layers = amount.partition(":")
    if colon and not _LAYERS.fullmatch(layers.strip()):
        raise PolicyError(f"--components: {component} has “{layers[:60]}” layers; write a number, such as 24")
    count = int(layers) if colon else LAYERS
    weights = parse_size(size, f"--components: {component}")
    on_cpu = not machine.accelerator or _left_to_cpu(component, machine)
    return ComponentFacts(
        name=component,
        model=component,
        bytes=weights,
        layers=count,
        layer_bytes=int(weights * LAYER_SHARE) if count else 0,
        on_cpu=on_cpu,
        can=_capabilities(machine, on_cpu),
    )


def _capabilities(machine: MachineFacts, on_cpu: bool) -> Capabilities:
    if machine.dynamic_vram and not on_cpu:
        return PAGED
    directml = machine.flag("--directml")
    return cannot_copy(STREAMED, directml) if directml and not on_cpu else STREAMED


def _left_to_cpu(component: str, machine: MachineFacts) -> bool:
    """Tell whether ComfyUI computes a component on the CPU although there is an accelerator."""
    if base_name(component).endswith("vae"):
        return machine.flag("--cpu-vae") is not None
    if not is_encoder(component) or machine.dynamic_vram or machine.flag("--gpu-only"):
        return False
    return machine.shared_memory or any(machine.flag(name) for name in ("--lowvram", "--novram"))


def _dynamic_vram(said: bool, accelerator: bool, shared: bool, flags: Sequence[str]) -> bool:
    """Tell whether ComfyUI pages weights in by itself; only versions that can do it know `--vram-headroom`."""
    why_not = _why_not_dynamic(accelerator, shared, flags)
    if said and why_not:
        raise PolicyError(f"--dynamic-vram: ComfyUI has none {why_not}")
    return not why_not and (said or any(_flag(name, flags) for name in _DYNAMIC))


def _why_not_dynamic(accelerator: bool, shared: bool, flags: Sequence[str]) -> str:
    against = next((name for name in _NOT_DYNAMIC if _flag(name, flags)), None)
    if against is not None and (against == "--cpu" or not _flag("--enable-dynamic-vram", flags)):
        return f"with {against}"
    if not accelerator:
        return "without an accelerator"
    return "where memory is shared" if shared else ""


def _check_flag(name: str, value: str = "") -> None:
    follows = f", and “{value[:60]}” follows it" if value else ""
    if name not in FLAGS:
        raise PolicyError(
            f"--flags: ComfyUI has no flag “{name[:60]}” that bears on placements; {suggest(name, FLAGS)}"
        )
    if name in _IN_GB:
        if not _AMOUNT.fullmatch(value):
            raise PolicyError(f"--flags: {name} needs a number of GB{follows}")
    elif name in _WITH_NUMBER:
        if value and not _NUMBER.fullmatch(value):
            raise PolicyError(f"--flags: {name} takes a whole number{follows}")
    elif value:
        raise PolicyError(f"--flags: {name} takes no value{follows}")


def _flag(name: str, flags: Iterable[str]) -> str | None:
    return next((flag for flag in flags if flag.split(" ", 1)[0] == name), None)


def _gigabytes(name: str, flags: Sequence[str]) -> int | None:
    """Return the bytes of a flag that is typed in GB, or None when it is not there."""
    typed = _flag(name, flags)
    return None if typed is None else int(float(typed.partition(" ")[2]) * GB)


def _reserve(flags: Sequence[str]) -> int:
    typed = _gigabytes("--reserve-vram", flags)
    return COMPUTE_RESERVE + (OTHERS_RESERVE if typed is None else typed)


def _device(accelerator: bool, shared: bool, directml: bool) -> str:
    if not accelerator:
        return "cpu"
    return "mps" if shared else "privateuseone:0" if directml else "cuda:0"


def _count(text: str) -> int:
    if not _COUNT.fullmatch(text.strip()):
        raise PolicyError(f"--accelerators: “{text[:60]}” is not a number of accelerators; write 0 to 99")
    return int(text)


def _only_once(text: str | None, option: str, instead: str) -> None:
    if text is not None:
        raise PolicyError(f"{option}: with --shared-memory, {instead} says it")


def _within(used: int, total: int, option: str) -> None:
    if used > total:
        raise PolicyError(f"{option}: {format_bytes(used)} are more than the {format_bytes(total)} there are")
