"""Where in the code under test something happened: a cheap, lazily formatted stack excerpt."""

from __future__ import annotations

import os
import sys
from types import CodeType

import torch

_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_STDLIB = os.path.dirname(os.path.abspath(os.__file__))

#: Code objects are few and live long, so the verdict on each file is remembered.
_hidden: dict[str, bool] = {}


def _is_hidden(filename: str) -> bool:
    """Frames of torch, Python, the test runner and the simulator explain nothing to the reader."""
    verdict = _hidden.get(filename)
    if verdict is None:
        name = os.path.basename(filename)
        ours = filename.startswith(_HERE) and not name.startswith(("test_", "conftest"))
        installed = f"{os.sep}site-packages{os.sep}" in filename
        stdlib = filename.startswith(_STDLIB) and not installed
        runner = f"{os.sep}_pytest{os.sep}" in filename or f"{os.sep}pluggy{os.sep}" in filename
        verdict = ours or stdlib or runner or filename.startswith((_TORCH, "<"))
        _hidden[filename] = verdict
    return verdict


class Site:
    """The nearest frames outside torch and the simulator, innermost first."""

    __slots__ = ("frames",)

    def __init__(self, frames: tuple[tuple[CodeType, int], ...]) -> None:
        self.frames = frames

    @classmethod
    def here(cls, depth: int = 2) -> Site:
        frames: list[tuple[CodeType, int]] = []
        frame = sys._getframe(1)
        while frame is not None and len(frames) < depth:
            if not _is_hidden(frame.f_code.co_filename):
                frames.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return cls(tuple(frames))

    def __str__(self) -> str:
        if not self.frames:
            return "<no frame outside torch>"
        names = (
            f"{os.sep.join(code.co_filename.split(os.sep)[-2:])}:{line} in {code.co_name}"
            for code, line in self.frames
        )
        return ", called from ".join(names)
