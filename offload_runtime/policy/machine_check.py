"""What *Check this machine* has found: the file that people attach to a bug report, and that predictions read.

It holds numbers, names of makers and versions, and sentences of ours; no names of people or of their files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ..errors import PolicyError

FILE_NAME = "layerwise_offload_machine.json"
VERSION = 1
MAX_BYTES = 64 * 1024
_MOST = 64
"""Verdicts, notes or sizes that a file may list."""
_LONGEST = 400
"""Letters of any text in it."""

Copies = tuple[tuple[int, float], ...]
"""Bytes of a copy, and the seconds that one takes; from small to large."""


@dataclass(frozen=True)
class Verdict:
    """A claim, what was found, and whether it holds."""

    claim: str
    found: str
    holds: bool


@dataclass(frozen=True)
class MachineCheck:
    """What was measured. Speeds are bytes per second, None where something could not be measured.

    Attributes:
        device: the device that computes, as its maker calls it.
        kind: torch's word for its type; `cpu` where the CPU computes.
        device_bytes: its memory; 0 for the CPU.
        memory_bytes: the host's memory.
        system: the operating system; `python`, `torch` and `comfyui` are versions, the last one "" without ComfyUI.
        checked: when, in seconds since 1970.
        pinned_copies: copies to the device from pinned memory.
        pageable_copies: the same from ordinary memory.
        disk: a file that the system has not in memory → memory.
        page_cache: a file that it has → memory.
        memory: memory → memory.
        overlap: how much of a copy from pinned memory hides behind computing that takes as long; 1 is all.
        overlap_staged: the same from ordinary memory, copied by the streamer's thread.
        verdicts: whether what the pack claims holds here.
        notes: what could not be measured, and why.
    """

    device: str
    kind: str
    device_bytes: int = 0
    memory_bytes: int = 0
    system: str = ""
    python: str = ""
    torch: str = ""
    comfyui: str = ""
    checked: int = 0
    pinned_copies: Copies = ()
    pageable_copies: Copies = ()
    disk: float | None = None
    page_cache: float | None = None
    memory: float | None = None
    overlap: float | None = None
    overlap_staged: float | None = None
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in _numbers(self):
            if not math.isfinite(value) or not 0 <= value < 2**63:
                raise ValueError(f"{name} is no size or time")
        if any(not size or not seconds for size, seconds in (*self.pinned_copies, *self.pageable_copies)):
            raise ValueError("a copy has no size, or takes no time")
        listed = (self.pinned_copies, self.pageable_copies, self.verdicts, self.notes)
        if max(map(len, listed)) > _MOST or any(len(text) > _LONGEST for text in _texts(self)):
            raise ValueError("it is longer than any that this pack writes")

    @property
    def link_pinned(self) -> float | None:
        """Bytes per second from pinned memory to the device, by the largest copy."""
        return _speed(self.pinned_copies)

    @property
    def link_pageable(self) -> float | None:
        """The same from ordinary memory."""
        return _speed(self.pageable_copies)

    @property
    def copy_latency(self) -> float | None:
        """Seconds that a copy from pinned memory takes beside its bytes, by the smallest copy."""
        speed = self.link_pinned
        if speed is None:
            return None
        size, seconds = self.pinned_copies[0]
        return max(0.0, seconds - size / speed)

    @property
    def holds(self) -> bool:
        """Whether all claims hold."""
        return all(verdict.holds for verdict in self.verdicts)

    def to_dict(self) -> dict[str, object]:
        """Return it as plain values, as the file has them."""
        return {"version": VERSION, **asdict(self)}

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"


def parse_machine_check(data: bytes) -> MachineCheck:
    """Read the content of a file.

    Raises:
        PolicyError: it is none that this pack can read, in one sentence.
    """
    from pydantic import TypeAdapter, ValidationError  # only who reads one pays for it

    if len(data) > MAX_BYTES:
        raise _unreadable("it is larger than any that this pack writes")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise _unreadable("it is no JSON") from None
    version = values.get("version") if isinstance(values, dict) else None
    if version != VERSION:
        raise _unreadable(f"its version is {str(version)[:20]}, and this pack reads {VERSION}")
    try:
        return TypeAdapter(MachineCheck).validate_python({k: v for k, v in values.items() if k != "version"})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise _unreadable(f"{place[:80]}: {first['msg'][:120]}") from None


def _unreadable(why: str) -> PolicyError:
    return PolicyError(f"{FILE_NAME} cannot be used, because {why}; run Check this machine again")


def _speed(copies: Copies) -> float | None:
    if not copies:
        return None
    size, seconds = copies[-1]
    return size / seconds


def _numbers(check: MachineCheck) -> Iterator[tuple[str, float]]:
    names = ("device_bytes", "memory_bytes", "checked", "disk", "page_cache", "memory", "overlap")
    for name in (*names, "overlap_staged"):
        value = getattr(check, name)
        if value is not None:
            yield name, value
    for copies in (check.pinned_copies, check.pageable_copies):
        for size, seconds in copies:
            yield from (("a size", size), ("a time", seconds))


def _texts(check: MachineCheck) -> Iterator[str]:
    yield from (check.device, check.kind, check.system, check.python, check.torch, check.comfyui)
    yield from check.notes
    for verdict in check.verdicts:
        yield from (verdict.claim, verdict.found)
