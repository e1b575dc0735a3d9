"""The demo's fp8 text encoder: loaded and used by ComfyUI's loader, and by Load CLIP (Layerwise).

Each way runs in a process of its own, so that neither finds the other's memory. `python -m scripts.demo_encoder` is
that process: it says when ComfyUI is imported, waits for a line, and says what it measured as a JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .peak_memory import Peak, PeakMemory
from .places import ROOT
from .problem import Problem

FILE = "text_encoders/demo_clip_h_fp8.safetensors"
TYPE = "stable_diffusion"
PROMPT = "a small boat on a lake, at night"
_SAYS = "demo:"
WAYS = {"core": "Load CLIP", "ours": "Load CLIP (Layerwise)"}


@dataclass(frozen=True)
class Encoding:
    """What it took to load the encoder and to encode once, and a hash of the result."""

    peak: Peak
    seconds: float
    hash: str


def measure(models: Path, tree: Path) -> dict[str, Encoding]:
    """Load and encode in each way.

    Args:
        models: the folder of the demo models.
        tree: the ComfyUI tree.

    Raises:
        Problem: a way fails, or the results differ.
    """
    with contextlib.ExitStack() as open_:
        errors = {  # in files: a pipe that nobody reads could fill up
            way: open_.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            for way in WAYS
        }
        begun = {  # they import side by side
            way: open_.enter_context(_Way(way, models / FILE, tree, errors[way])) for way in WAYS
        }
        for way in begun.values():
            way.read()
        found = {name: way.encode() for name, way in begun.items()}
    if len({one.hash for one in found.values()}) > 1:
        raise Problem(f"the two loaders of {FILE} encode differently.")
    return found


def lines(models: Path, found: dict[str, Encoding]) -> list[str]:
    """Say what was measured."""
    size = (models / FILE).stat().st_size
    head = f"An fp8 text encoder, {size / 1e6:.0f} MB, loaded and used once in a process of its own; peak memory:"
    body = [f"  {WAYS[way]:22} {one.peak}, {one.seconds:.1f} s" for way, one in found.items()]
    hashes = " ".join({one.hash for one in found.values()})
    return [head, *body, f"  Both encode the same, to the bit ({hashes})."]


class _Way:
    """The process of one way; it ends when this is left."""

    def __init__(self, way: str, file: Path, tree: Path, errors: IO[str]) -> None:
        self._way = way
        self._errors = errors
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.demo_encoder", way, str(file), str(tree)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "LAYERWISE_OFFLOAD_LEARN": "off"},  # each way starts from nothing
        )

    def __enter__(self) -> _Way:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None, None, None)  # closes its input, and waits

    def encode(self) -> Encoding:
        """Let it load and encode, and watch its memory."""
        with PeakMemory(self._process.pid) as memory:
            print(file=self._process.stdin, flush=True)
            said = self.read()
        return Encoding(memory.whole, **json.loads(said))

    def read(self) -> str:
        """Return the next line that it says, without what other packages print."""
        for line in self._process.stdout or ():
            if line.startswith(_SAYS):
                return line.removeprefix(_SAYS)
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]
        raise Problem(f"{WAYS[self._way]} of {FILE} failed: {last}")


def main() -> None:
    """Load and encode in one way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=list(WAYS))
    parser.add_argument("file", type=Path)
    parser.add_argument("tree", type=Path)
    asked = parser.parse_args()
    load = _loader(asked.way, asked.file, asked.tree)
    print(_SAYS, flush=True)
    if not sys.stdin.readline():
        return
    import torch

    began = time.perf_counter()
    with torch.inference_mode():  # as in ComfyUI's executor
        clip, kept = load()
        result = clip.encode_from_tokens(clip.tokenize(PROMPT))
    seconds = time.perf_counter() - began
    digest = hashlib.sha256(result.float().numpy().tobytes()).hexdigest()[:12]
    print(_SAYS, json.dumps({"seconds": seconds, "hash": digest}), flush=True)
    sys.stdin.read()  # until the memory has been looked at
    del kept


def _loader(way: str, file: Path, tree: Path) -> Any:
    """Import ComfyUI, and return what loads the encoder: a function of its CLIP and of what has to be kept."""
    sys.path.insert(0, str(tree))
    import comfy.cli_args

    comfy.cli_args.args.cpu = True
    import folder_paths

    import nodes

    folder_paths.folder_names_and_paths["text_encoders"] = ([str(file.parent)], {".safetensors"})
    if way == "core":
        return lambda: (nodes.CLIPLoader().load_clip(file.name, type=TYPE)[0], None)
    from offload_runtime.adapter import Placements, load_and_place
    from offload_runtime.policy import Policy, Source, SourceKind

    policy = Policy.for_component(Source(SourceKind.NODE, "the demo"), "text_encoder", placement="layerwise")

    def load() -> tuple[Any, object]:
        loaded, placements, _ = load_and_place(
            lambda: nodes.CLIPLoader().load_clip(file.name, type=TYPE),
            ("clip",),
            {"clip_name": file.name},
            policy,
            Placements(),
        )
        return loaded[0], placements

    return load


if __name__ == "__main__":
    main()
