"""Order between host threads, taken from the standard hand-offs while an accelerator is on.

Each thread has its own virtual clock. When one hands something to another, the receiver cannot go on before
the sender's moment, and what the sender did is ordered before what the receiver does. Watched:
``Thread.start`` and ``join``, ``queue.Queue`` (and its Lifo and Priority kin, conservatively),
``threading.Event``, ``Condition`` and ``Semaphore`` wake-ups, and ``concurrent.futures`` (submit, result).
Bare locks and ``queue.SimpleQueue`` are not: a lock says nothing about who comes first. Use
``hand_off``/``take_over`` for those.
"""

from __future__ import annotations

import concurrent.futures
import functools
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .machine import HandOff, Machine
from .patches import Patches

_NOTE = "_sim_hand_off"


def install(patches: Patches, machine: Machine) -> None:
    """Watch the hand-offs."""
    watch = _Watch(patches, machine)
    _watch_threads(watch)
    _watch_futures(watch)
    watch.sends(threading.Event, "set")
    watch.receives(threading.Event, "wait")
    watch.sends(threading.Condition, "notify")
    watch.receives(threading.Condition, "wait")
    watch.sends(threading.Semaphore, "release")
    watch.receives(threading.Semaphore, "acquire")
    _watch_queues(watch)


class _Watch:
    def __init__(self, patches: Patches, machine: Machine) -> None:
        self.patches, self.machine = patches, machine

    def sends(self, owner: type, method: str) -> None:
        """Leave a note on the object before the method runs."""
        original = getattr(owner, method)
        machine = self.machine

        @functools.wraps(original)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.__dict__[_NOTE] = machine.hand_off()
            return original(self, *args, **kwargs)

        self.patches.set(owner, method, wrapper)

    def receives(self, owner: type, method: str) -> None:
        """Take over from the note, when the method says that it was woken."""
        original = getattr(owner, method)
        machine = self.machine

        @functools.wraps(original)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            note: HandOff | None = self.__dict__.get(_NOTE)
            if result is not False and note is not None:
                machine.take_over(note)
            return result

        self.patches.set(owner, method, wrapper)


def _watch_threads(watch: _Watch) -> None:
    machine = watch.machine
    start, join = threading.Thread.start, threading.Thread.join

    def started(self: threading.Thread) -> None:
        before = machine.hand_off()
        body = self.run

        def run_after() -> None:
            machine.take_over(before)
            try:
                body()
            finally:
                self.__dict__[_NOTE] = machine.hand_off()

        self.run = run_after  # type: ignore[method-assign]
        start(self)

    def joined(self: threading.Thread, timeout: float | None = None) -> None:
        join(self, timeout)
        if not self.is_alive() and _NOTE in self.__dict__:
            machine.take_over(self.__dict__[_NOTE])

    watch.patches.set(threading.Thread, "start", started)
    watch.patches.set(threading.Thread, "join", joined)


def _watch_futures(watch: _Watch) -> None:
    machine = watch.machine
    pool, future = concurrent.futures.ThreadPoolExecutor, concurrent.futures.Future
    submit = pool.submit

    def submitted(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        before = machine.hand_off()

        def after(*inner_args: Any, **inner_kwargs: Any) -> Any:
            machine.take_over(before)
            return fn(*inner_args, **inner_kwargs)

        return submit(self, after, *args, **kwargs)

    watch.patches.set(pool, "submit", submitted)
    watch.sends(future, "set_result")
    watch.sends(future, "set_exception")
    watch.receives(future, "result")
    watch.receives(future, "exception")


def _watch_queues(watch: _Watch) -> None:
    """An item carries its note with it. ``_put`` and ``_get`` run under the queue's own lock."""
    machine = watch.machine

    def watched(owner: type[queue.Queue[Any]], in_order: bool) -> None:
        put, get = owner._put, owner._get  # type: ignore[attr-defined]

        def _put(self: Any, item: Any) -> None:
            self.__dict__.setdefault(_NOTE, deque()).append(machine.hand_off())
            put(self, item)

        def _get(self: Any) -> Any:
            item = get(self)
            notes = self.__dict__.get(_NOTE)
            for _ in range((1 if in_order else len(notes)) if notes else 0):
                machine.take_over(notes.popleft())
            return item

        watch.patches.set(owner, "_put", _put)
        watch.patches.set(owner, "_get", _get)

    watched(queue.Queue, in_order=True)
    watched(queue.LifoQueue, in_order=False)
    watched(queue.PriorityQueue, in_order=False)
