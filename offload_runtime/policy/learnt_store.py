"""The file that what was learnt is kept in: read, merged and replaced under a lock, so that two servers may share it.

It is there whole or not at all. One that cannot be understood is set aside, and a new one is begun; a folder that
cannot be written to is not tried again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ..log import information, warning
from ..whole_file import replace_file
from .learnt import Learnt
from .learnt_file import MOST_BYTES, from_text, to_text

_PATIENCE = 1.0
"""Seconds to wait for another server that writes."""

_ABANDONED = 10.0
"""Seconds after which a lock is taken for one that nobody holds any more: writing takes some milliseconds."""


class LearntStore:
    """One file, and what was last read of it.

    Args:
        path: the file; its folder is made when there is something to keep.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = Learnt()
        self._seen: tuple[int, int] | None = None
        self._closed = False

    def read(self) -> Learnt:
        """Return what is kept; what another server has written since, too."""
        try:
            found = self.path.stat()
            if (found.st_mtime_ns, found.st_size) == self._seen:
                return self._known
            with self.path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            self._seen = found.st_mtime_ns, found.st_size
        except FileNotFoundError:
            self._seen, self._known = None, Learnt()
            return self._known
        except OSError as error:
            self._close(error)
            return self._known
        try:
            if len(content) > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES >> 20} MB")
            self._known = from_text(content.decode())
        except (ValueError, RecursionError) as error:
            self._set_aside(error)
            self._seen, self._known = None, Learnt()
        return self._known

    def add(self, more: Learnt) -> Learnt:
        """Keep what was learnt beside what is there; return all of it. A failure costs only what was to be kept."""
        if self._closed:
            return self._known
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock() as ours:
                if ours:
                    self._known = self.read().merged(more)
                    self._replace(to_text(self._known))
        except OSError as error:
            self._close(error)
        return self._known

    def _replace(self, text: str) -> None:
        replace_file(self.path, text)
        found = self.path.stat()
        self._seen = found.st_mtime_ns, found.st_size

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool]:
        """Hold the lock file, and say whether it is held: another server may not let go of it in time."""
        lock, until = self.path.with_suffix(".lock"), time.monotonic() + _PATIENCE
        while True:
            try:
                os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                break
            except FileExistsError:
                if _age(lock) > _ABANDONED:
                    lock.unlink(missing_ok=True)
                elif time.monotonic() > until:
                    yield False
                    return
                else:
                    time.sleep(0.005)
        try:
            yield True
        finally:
            lock.unlink(missing_ok=True)

    def _set_aside(self, error: Exception) -> None:
        aside = self.path.with_suffix(".unreadable")
        with contextlib.suppress(OSError):
            os.replace(self.path, aside)
        warning("what was learnt from earlier runs cannot be read (%s); it is in %s now", error, aside)

    def _close(self, error: OSError) -> None:
        if not self._closed:
            information("nothing is learnt from runs, because %s: %s", self.path, error.strerror or error)
        self._closed = True


def _age(file: Path) -> float:
    """Return for how many seconds a file has been there; 0 if it is gone."""
    try:
        return time.time() - file.stat().st_mtime
    except OSError:
        return 0.0
