"""How a streamer rides on a `ModelPatcher`: the only contact points with ComfyUI's memory manager.

Attachment, injection and the ON_CLONE / ON_DETACH callbacks, under one key. The injection wraps the layers
when ComfyUI loads the patcher and unwraps them when it lets go. A patcher that loads to an accelerator gets
instance overrides, too (`account`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from comfy.patcher_extension import CallbacksMP, PatcherInjection
from torch import nn

from ..engine import LooseTensors, Streamer
from ..log import debug
from . import debug_lines, load_lines
from .account import OVERRIDES
from .contacts import Group, missing, missing_on
from .embedding import HostEmbeddings
from .guard import Guard
from .handles import is_dynamic
from .loads import time_loads
from .loose import loose_tensors
from .record import record_of
from .watching import Watch

KEY = "layerwise_offload"


class Carried(Protocol):
    """What a patcher can carry.

    Attributes:
        component: the name of what somebody placed, or "" for what is left to ComfyUI.
    """

    component: str

    def inject(self, patcher: Any) -> None:
        """Hear that the patcher is loaded now."""

    def eject(self, patcher: Any) -> None:
        """Hear that ComfyUI lets go of it."""

    def on_detach(self, patcher: Any, unpatch_all: bool) -> None:
        """Hear that it leaves the device, or only its place to a clone."""


class Attachment:
    """What one patcher carries: its own streamer, and the way on and off.

    Attributes:
        on_gone: called when all of it has left the device.
    """

    def __init__(
        self,
        component: str,
        streamer: Streamer,
        embeddings: HostEmbeddings | None = None,
        loose: LooseTensors | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.component = component
        self.streamer = streamer
        self.loose = loose
        self.on_gone: Callable[[], None] = lambda: None
        self._embeddings = embeddings
        self._guard = guard
        self._line = load_lines.LoadLine(component)
        self._to_tell = False  # whether the log is to hear of a load, once the layers are wrapped

    @property
    def tables(self) -> list[nn.Module]:
        """The embedding tables that are looked up on the host."""
        return self._embeddings.tables() if self._embeddings is not None else []

    def inject(self, patcher: Any) -> None:
        """Wrap the layers: the patcher is loaded now."""
        if self.loose is not None:
            found = loose_tensors(patcher.model, self.streamer.layers)
            self.loose.bring((loose.entries, loose.key) for loose in found)
        if self._guard is not None:
            self._guard.install()
        self.streamer.install()
        if self._embeddings is not None:
            self._embeddings.install()
        if self._to_tell:
            self._to_tell = False
            self.tell(patcher)

    def eject(self, patcher: Any) -> None:
        """Unwrap the layers, unless another patcher of the same model has wrapped them since."""
        if self._embeddings is not None:
            self._embeddings.uninstall()
        self.streamer.uninstall()
        if self._guard is not None:
            self._guard.uninstall()
        if self.loose is not None:
            self.loose.give_back()

    def on_detach(self, patcher: Any, unpatch_all: bool) -> None:
        """Give the slot back: on eviction, and when a clone of the model is loaded instead."""
        if unpatch_all:  # else its weights stay: ComfyUI also lets go of a model to load it again
            debug(lambda: debug_lines.unload(self.component, patcher, self.streamer))
            self._line.left()
            self.on_gone()
        self.streamer.free()
        record = record_of(patcher.model)
        record.masters.rest(self.streamer.layers)
        if unpatch_all and not record.masters.weights.packed_bytes:
            record.mapped.end_use()

    def tell(self, patcher: Any) -> None:
        """Let the log hear of a load."""
        debug(lambda: debug_lines.load(self.component, patcher, self.streamer))
        self._line.tell(load_lines.streamed(patcher, self.streamer))

    def tell_of_loads(self, patcher: Any) -> None:
        """Let the log hear of each load of a patcher: ComfyUI also injects without one."""

        def loads(*_: object) -> None:
            self._to_tell = True

        patcher.add_callback_with_key(CallbacksMP.ON_LOAD, KEY, loads)


def attach(patcher: Any, attachment: Carried, on_clone: Callable[[Any, Any], object]) -> None:
    """Put an attachment on a patcher, in place of one that is there.

    Args:
        patcher: a `ModelPatcher` that our node owns.
        attachment: what it shall carry.
        on_clone: called with (old, new) when the patcher is cloned.
    """
    strip(patcher)  # a clone starts with the contact points of the patcher it was made from
    patcher.set_attachments(KEY, attachment)
    watch = Watch(patcher.model, patcher.load_device)
    failed = False

    def inject(loaded: Any) -> None:
        nonlocal failed
        if not failed:
            attachment.inject(loaded)
            watch.install()
        failed = False

    def eject(left: Any) -> None:
        watch.remove()
        attachment.eject(left)

    def on_detach(left: Any, unpatch_all: bool) -> None:
        nonlocal failed
        failed = left.skip_injection  # in the middle of a load that fails; ComfyUI injects all the same
        attachment.on_detach(left, unpatch_all)

    if attachment.component and not is_dynamic(patcher):
        time_loads(patcher)
    patcher.set_injections(KEY, [PatcherInjection(inject, eject)])
    patcher.add_callback_with_key(CallbacksMP.ON_CLONE, KEY, on_clone)
    patcher.add_callback_with_key(CallbacksMP.ON_DETACH, KEY, on_detach)


class Nothing:
    """What a patcher carries that is only heard of when it is loaded and when it computes.

    Args:
        component: the name of what somebody placed, or "" for what is left to ComfyUI: its loads are not told of.
    """

    def __init__(self, component: str = "") -> None:
        self.component = component
        self._line = load_lines.LoadLine(component) if component else None

    def inject(self, patcher: Any) -> None:
        """Let the log hear of the load."""
        if self._line is not None:
            self._line.tell(load_lines.whole(patcher))

    def eject(self, patcher: Any) -> None:
        """Nothing is to be undone."""

    def on_detach(self, patcher: Any, unpatch_all: bool) -> None:
        """Nothing is to be given back."""
        if self._line is not None and unpatch_all:
            self._line.left()


def strip(patcher: Any) -> None:
    """Take our contact points off a patcher that is not loaded, whichever backend put them there."""
    if missing(Group.EVERY) or missing_on(Group.EVERY, patcher):
        return  # then none was ever put on one
    if patcher.attachments.pop(KEY, None) is not None:
        patcher.size = 0  # a clone is told the size that we gave; ComfyUI measures it again
    # Core copies this to clones. One that is patched or dies would put its layers in, or take ours out.
    patcher.is_injected = False
    patcher.injections.pop(KEY, None)
    for event in (CallbacksMP.ON_LOAD, CallbacksMP.ON_CLONE, CallbacksMP.ON_DETACH):
        patcher.remove_callbacks_with_key(event, KEY)
    for name in OVERRIDES:
        patcher.__dict__.pop(name, None)
