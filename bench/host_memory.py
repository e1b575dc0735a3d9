"""Host memory of a text encoder on the CPU: `python -m bench.host_memory [fp8|fp16] [--limit 3] [--ways core ours]`

A T5-XXL of random weights in its real geometry is written to a safetensors file, and loaded and used twice in each of
five ways, each in a process of its own: ComfyUI's loader; that and our Loader (`layerwise`); our Load CLIP;
accelerate's `disk_offload`, and diffusers' group offloading to disk, on what ComfyUI's loader has loaded. Every
ComfyUI tree that the tests know is tried. Peaks are the system's own (`VmHWM`), file pages counted. With a limit, each
process runs in a memory group of so many GB, where this machine lets one be made (control groups of version 1, root).
Everything here is measured on this machine's CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from scripts import trees

GB = 1 << 30
GROUPS = Path("/sys/fs/cgroup/memory")
WAYS = {
    "core": "ComfyUI's loader",
    "placed": "and our Loader, layerwise",
    "ours": "our Load CLIP, layerwise",
    "accelerate": "and accelerate disk_offload",
    "diffusers": "and diffusers group offload to disk",
}
WIDTH, INNER, HEADS, WORDS, LAYERS = 4096, 10240, 64, 32128, 24


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Host memory of a text encoder on the CPU.")
    parser.add_argument("dtype", nargs="?", choices=["fp8", "fp16"], default="fp8")
    parser.add_argument("--limit", type=float, help="GB of memory that each process may take")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"t5xxl_{asked.dtype}.safetensors"
        write(file, asked.dtype)
        print(f"{file.name}: {file.stat().st_size / 1e9:.2f} GB")
        for tree in trees.prepare()[0]:
            print(f"\n{tree.name}, --cpu{f', at most {asked.limit} GB' if asked.limit else ''}")
            print(f"{'':36} {'load':>7} {'peak':>9} {'encode':>8} {'again':>8} {'peak':>9}  result")
            for way in asked.ways:
                print(f"{WAYS[way]:36} {measure(tree, way, file, asked.limit)}", flush=True)


def measure(tree: trees.Runnable, way: str, file: Path, limit: float | None) -> str:
    """Run one way in a process of its own, and return its line."""
    command = [str(tree.python), "-m", "bench.host_memory_child", way, str(file), str(tree.tree)]
    with _group(limit) as enter:
        done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=enter)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return "killed" if done.returncode == -9 else f"failed: {said[:90]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    peak = max(found["first_peak"], found["second_peak"])
    return (
        f"{found['load_s']:6.1f}s {found['load_peak'] / 1e9:6.2f} GB {found['first_s']:7.1f}s "
        f"{found['second_s']:7.1f}s {peak / 1e9:6.2f} GB  {found['hash']}"
    )


@contextlib.contextmanager
def _group(limit: float | None) -> Iterator[Any]:
    """Yield what puts a process into a memory group of so many GB, or None."""
    if limit is None:
        yield None
        return
    group = GROUPS / f"layerwise-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(int(limit * GB)), encoding="utf-8")
    except OSError as error:
        sys.exit(f"This machine lets no memory group be made: {error}.")
    try:
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
    finally:
        group.rmdir()


def write(file: Path, dtype: str) -> None:
    """Write the weights of an encoder: small random numbers, scales of norms near one."""
    generator = torch.Generator().manual_seed(20)

    def some(*shape: int) -> torch.Tensor:
        if dtype == "fp16":
            return torch.randn(shape, generator=generator, dtype=torch.float32).mul_(0.02).half()
        values = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        return ((values & 0x87) | ((values >> 1) & 0x18)).view(torch.float8_e4m3fn)  # no large exponents

    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(shape).to(torch.float16 if dtype == "fp16" else torch.float8_e4m3fn)

    weights = {"shared.weight": some(WORDS, WIDTH), "encoder.final_layer_norm.weight": ones(WIDTH)}
    for layer in range(LAYERS):
        attention, wide = (f"encoder.block.{layer}.layer.{part}" for part in (0, 1))
        weights |= {f"{attention}.SelfAttention.{name}.weight": some(WIDTH, WIDTH) for name in "qkvo"}
        weights |= {f"{wide}.DenseReluDense.{name}.weight": some(INNER, WIDTH) for name in ("wi_0", "wi_1")}
        weights[f"{wide}.DenseReluDense.wo.weight"] = some(WIDTH, INNER)
        weights |= {f"{part}.layer_norm.weight": ones(WIDTH) for part in (attention, wide)}
    weights["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = some(32, HEADS)
    save_file(weights, file)


if __name__ == "__main__":
    main()
