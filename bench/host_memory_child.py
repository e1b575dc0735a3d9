"""One way to load a text encoder and encode twice on the CPU, in a process of its own: `bench.host_memory` starts it.

The last line that it prints is a JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

PROMPT = "a photograph of an astronaut riding a horse on the moon, in the style of an old postcard"


def main() -> None:
    """Load and encode, and print what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("file", type=Path)
    parser.add_argument("tree", type=Path)
    asked = parser.parse_args()
    _start_comfyui(asked.tree, asked.file)
    found: dict[str, Any] = {"before": _status("VmRSS")}
    _forget_peak()
    began = time.perf_counter()
    clip, kept = WAYS[asked.way](asked.file)
    found |= {
        "load_s": time.perf_counter() - began,
        "load_peak": _status("VmHWM"),
        "anonymous": _status("RssAnon"),
    }
    for use in ("first", "second"):
        _forget_peak()
        began = time.perf_counter()
        with torch.inference_mode():
            result = clip.encode_from_tokens(clip.tokenize(PROMPT))
        found[f"{use}_s"] = time.perf_counter() - began
        found[f"{use}_peak"] = _status("VmHWM")
        found["hash"] = hashlib.sha256(result.float().numpy().tobytes()).hexdigest()[:12]
    del kept
    print(json.dumps(found))


def _start_comfyui(tree: Path, file: Path) -> None:
    sys.path.insert(0, str(tree))
    sys.argv = [sys.argv[0]]
    import comfy.cli_args

    comfy.cli_args.args.cpu = True
    import folder_paths

    folder_paths.folder_names_and_paths["text_encoders"] = ([str(file.parent)], {".safetensors"})


def _core(file: Path) -> tuple[Any, object]:
    import nodes

    return nodes.CLIPLoader().load_clip(file.name, type="mochi")[0], None


def _placed(file: Path) -> tuple[Any, object]:
    from offload_runtime.adapter import Placements, apply_policy

    clip, _ = _core(file)
    out, placements = apply_policy(_policy(), {"clip": clip}, {"clip": [file]}, Placements())
    return out["clip"], placements


def _ours(file: Path) -> tuple[Any, object]:
    import nodes
    from offload_runtime.adapter import Placements, load_and_place

    def load() -> Any:
        return nodes.CLIPLoader().load_clip(file.name, type="mochi")

    loaded, placements, _ = load_and_place(load, ("clip",), {"clip_name": file.name}, _policy(), Placements())
    return loaded[0], placements


def _policy() -> Any:
    from offload_runtime.policy import Policy, Source, SourceKind

    return Policy.for_component(
        Source(SourceKind.NODE, "the benchmark"), "text_encoder", placement="layerwise"
    )


def _accelerate(file: Path) -> tuple[Any, object]:
    from accelerate import disk_offload

    clip, _ = _core(file)
    folder = tempfile.TemporaryDirectory(dir=file.parent)
    disk_offload(_encoder(clip), folder.name, execution_device=torch.device("cpu"), offload_buffers=False)
    return clip, folder


def _diffusers(file: Path) -> tuple[Any, object]:
    from diffusers.hooks import apply_group_offloading

    clip, _ = _core(file)
    folder = tempfile.TemporaryDirectory(dir=file.parent)
    cpu = torch.device("cpu")
    apply_group_offloading(
        _encoder(clip),
        cpu,
        cpu,
        offload_type="block_level",
        num_blocks_per_group=1,
        offload_to_disk_path=folder.name,
    )
    return clip, folder


def _encoder(clip: Any) -> torch.nn.Module:
    encoder: torch.nn.Module = clip.cond_stage_model.t5xxl.transformer
    return encoder


def _forget_peak() -> None:
    """Set the peak that the system has noted back to what is in memory now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


WAYS = {"core": _core, "placed": _placed, "ours": _ours, "accelerate": _accelerate, "diffusers": _diffusers}

if __name__ == "__main__":
    os.environ["LAYERWISE_OFFLOAD_LEARN"] = "off"  # each run starts from nothing
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    main()
