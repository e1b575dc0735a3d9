"""One record per model: everything that we know of a model, whoever of its patchers it was learned from.

ComfyUI clones a patcher for every LoRA and every branch, and all the clones run one model: the same modules, the same
weights in the same memory. What belongs to that model is kept here, once. What belongs to a patcher (its streamer,
its placement) is on the patcher, as its attachment.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from ..engine import MappedWeights, Trace
from ..policy.learnt import USES, Lesson, resolution_class
from .at_rest import Rest
from .pinning import Masters
from .rounds import Rounds
from .uses import Uses

if TYPE_CHECKING:
    from .dynamic_order import Place
    from .making_room import MakingRoom


class Record:
    """What is known of one model.

    Attributes:
        trace: the order in which its layers ran in the last use.
        mapped: its weights that rest in a file.
        rest: who lets them rest there.
        masters: its weights that are packed into blocks, and who streams them.
        rounds: its uses in a row.
        uses: what they took in the last run.
        placed_for: what its weights on the device were last placed for by one of us, or None.
        failure: how a use of it has failed while its layers were streamed, as the end of a sentence; "" if none has.
        files: those that it may have been loaded from, the likeliest first.
        frames: of a VAE: `decode` and `encode` → how many frames it was given last.
        key: what tells it from other models when lessons are kept, or "" where nothing is learnt.
        lesson: what is kept of it, or None.
        workflows: those that it is placed in, as far as room is made for them.
        place: under dynamic VRAM, the place in line of the patcher that was loaded last.
    """

    def __init__(self, model: nn.Module) -> None:
        reference = weakref.ref(model)
        self.trace = Trace()
        self.mapped = MappedWeights()
        self.rest = Rest(reference, self.mapped)
        self.masters = Masters(reference)
        self.rounds = Rounds(reference)
        self.uses = Uses(reference)
        self.placed_for: tuple[object, ...] | None = None
        self.failure = ""
        self.files: tuple[Path, ...] = ()
        self.frames: dict[str, int] = {}
        self.key = ""
        self.workflows: weakref.WeakSet[MakingRoom] = weakref.WeakSet()
        self.lesson: Lesson | None = None
        self._demands: deque[int] = deque(maxlen=USES)
        self._place: weakref.ref[Place] | None = None

    @property
    def demand(self) -> int:
        """The most bytes that ComfyUI asked for beside its weights in the last uses; 0 before the first one."""
        return max(self._demands, default=0)

    @property
    def demands(self) -> tuple[int, ...]:
        """What it asked for in each of those, the last one last."""
        return tuple(self._demands)

    @property
    def passes(self) -> int | None:
        """How often its layers ran in the last use, maybe before ComfyUI was started; None where no trace says so."""
        seen = self.trace.passes
        return self.lesson.passes if seen is None and self.lesson is not None else seen

    def note_demand(self, asked: float, shape: Sequence[int] = (), what: str = "") -> None:
        """Note what ComfyUI asks for in a use that begins.

        Args:
            asked: the bytes.
            shape: batch, channels and sizes of what it is given, where that is known.
            what: what is done with it, where that may differ.
        """
        self._demands.append(int(asked))
        if shape:
            self.uses.note_input(f"{what} {resolution_class(shape)}".strip())

    def recall(self, lesson: Lesson) -> None:
        """Take what earlier runs have taught, unless it has been used since."""
        self.lesson = lesson
        self.uses.times = self.uses.times or lesson.times
        if not self._demands:
            self._demands.extend(lesson.demands)

    @property
    def place(self) -> Place | None:
        return self._place() if self._place is not None else None

    @place.setter
    def place(self, place: Place | None) -> None:
        self._place = weakref.ref(place) if place is not None else None


_records: weakref.WeakKeyDictionary[nn.Module, Record] = weakref.WeakKeyDictionary()


def record_of(model: nn.Module) -> Record:
    """Return the record of a model."""
    found = _records.get(model)
    if found is None:
        found = _records[model] = Record(model)
    return found


def all_models() -> Iterator[nn.Module]:
    """Return all models that are alive and that we know anything of."""
    yield from list(_records)


def all_records() -> Iterator[Record]:
    """Return the records of all models that are alive."""
    yield from list(_records.values())
