"""What runs teach, from one start of ComfyUI to the next: where it is kept, and when it is read and written.

A lesson is taken when the next run begins, when a report is asked for, or when ComfyUI ends: by then everything has
been computed, and nothing waits. It is written only where it says something new. `LAYERWISE_OFFLOAD_LEARN=off` switches
it off.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
from pathlib import Path

import comfy.model_management as mm
import folder_paths
from torch import nn

from ..engine import parameter_bytes
from ..policy.learnt import Learnt, Lesson, Timed, model_key
from ..policy.learnt_store import LearntStore
from ..policy.margin import Margin
from . import runs
from .hardware import dynamic_vram, name_of
from .record import Record, all_records, record_of

VARIABLE = "LAYERWISE_OFFLOAD_LEARN"
"""The environment variable that switches it off."""

_CHANGED = 0.05
"""A share of the time of a use that is worth being written down."""

_AGAIN = 24 * 3600.0
"""Seconds after which it is written down that a model is still in use."""

_stores: dict[Path, LearntStore] = {}


def is_on() -> bool:
    """Tell whether anything is learnt."""
    return os.environ.get(VARIABLE, "").strip().lower() not in ("off", "0", "no", "false")


def store() -> LearntStore:
    """Return the store of this ComfyUI's user folder."""
    path = Path(folder_paths.get_user_directory()) / "layerwise_offload" / "learned" / "runs.json"
    return _stores.setdefault(path, LearntStore(path))


def recall(model: nn.Module) -> str:
    """Let a model that was not used since the start know what it taught before; return its key, "" where it is off."""
    if not is_on():
        return ""
    record = record_of(model)
    if not record.key:
        record.key = _key(model)
        _at_exit()
        lesson = store().read().models.get(record.key)
        if lesson is not None:
            record.recall(lesson)
    return record.key


def learn(run: runs.Run, *, timed: bool = True) -> None:
    """Take the lessons of a run that is over, or that a report is made of.

    Args:
        run: the run.
        timed: whether its times may be asked for: that waits for what still computes.
    """
    if not is_on():
        return
    lessons = {}
    for record in all_records():
        if record.key and record.uses.run is run:
            lesson = _lesson(record, run, timed=timed)
            record.uses.times = lesson.times
            if record.lesson is None or _says_more(lesson, record.lesson):
                lessons[record.key] = record.lesson = lesson
    if lessons:
        store().add(Learnt(lessons))


def margin_of(key: str) -> Margin | None:
    """Return what is kept free for a workflow, or None if nothing ever was."""
    return store().read().margins.get(key) if key and is_on() else None


def keep_margin(key: str, margin: Margin) -> None:
    """Remember what is kept free for a workflow."""
    store().add(Learnt(margins={key: margin}))


runs.when_over.append(learn)


@functools.cache
def _at_exit() -> None:
    """Take the lessons of the last run when ComfyUI ends, without its times: the device may be gone by then."""
    atexit.register(lambda: learn(runs.current_run(), timed=False))


def _lesson(record: Record, run: runs.Run, *, timed: bool) -> Lesson:
    uses, model = record.uses, record.uses.model
    size = parameter_bytes(model) if model is not None else 0
    lesson = Lesson(run.began, size, record.passes, record.demands, uses.known)
    took = uses.took() if timed and not uses.failed else None
    return lesson.with_time(took) if took is not None else lesson


def _says_more(lesson: Lesson, before: Lesson) -> bool:
    """Tell whether a lesson is worth being written."""
    if lesson.passes != before.passes or lesson.at - before.at > _AGAIN:
        return True
    if max(lesson.demands, default=0) != max(before.demands, default=0):
        return True
    had = {took.kind(before.bytes): took for took in before.times}
    return any(_differs(took, had.get(took.kind(lesson.bytes))) for took in lesson.times)


def _differs(took: Timed, before: Timed | None) -> bool:
    return before is None or abs(took.computing - before.computing) > _CHANGED * before.computing


def _key(model: nn.Module) -> str:
    """Return what tells a model on this machine from others: names, shapes and types of weights, not their values."""
    found = hashlib.blake2b(digest_size=8)
    for name, weight in model.named_parameters():
        found.update(f"{name} {tuple(weight.shape)} {weight.dtype};".encode())
    return model_key(
        type(model).__name__, parameter_bytes(model), found.hexdigest(), _machine(), f"ComfyUI {_version()}"
    )


def _machine() -> str:
    device = mm.get_torch_device()
    if mm.is_device_cpu(device):
        return "CPU"
    manager = " dynamic" if dynamic_vram() else ""
    return f"{name_of(device) or device.type} {int(mm.get_total_memory(device)) >> 20} MB{manager}"


def _version() -> str:
    try:
        from comfyui_version import __version__
    except ImportError:  # a library copy of ComfyUI may lack it
        return "of unknown version"
    return str(__version__)
