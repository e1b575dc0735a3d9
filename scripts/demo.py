"""`make demo`: render one workflow without and with the pack on a real ComfyUI, and compare the pictures.

Runs in the environment that scripts/setup_env.py makes. Writes both pictures and the report to demo_output/.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from offload_runtime.policy.report_svg import report_svg

from . import comfyui_tree, demo_encoder, workflow
from .comfy_client import ComfyClient, Prompt
from .comfy_errors import name_node
from .comfy_server import ComfyServer
from .demo_models import ensure_models
from .peak_memory import Peak, PeakMemory
from .places import DEMO_OUTPUT, ROOT, demo_models, shown
from .problem import Problem, run

EXAMPLE = ROOT / "example_workflows" / "Placement policy on demo models.json"


@dataclass(frozen=True)
class Run:
    """One rendering: its picture, what it took, and what its nodes reported."""

    picture: bytes
    peak: Peak
    peak_from_sampler_on: Peak
    seconds: float
    outputs: dict[str, dict[str, Any]]


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    asked = workflow.read(options.workflow)
    tree = comfyui_tree.require()
    ensure_models(demo_models())
    print(f"… starting ComfyUI {comfyui_tree.version(tree)} on the CPU (10 to 30 s)", flush=True)
    with ComfyServer(Path(sys.executable), tree, demo_models(), options.port) as server:
        client = ComfyClient(server.url)
        with_pack = workflow.to_prompt(asked, client.object_info())
        plain = workflow.without_pack(with_pack)
        if plain == with_pack:
            raise Problem(
                f"{shown(options.workflow)} has no node of this pack, so there is nothing to compare."
            )
        runs = {
            "plain": render(server, client, plain, "the plain graph"),
            "layerwise": render(server, client, with_pack, "the same graph with the placement policy"),
        }
    print("… loading an fp8 text encoder, by ComfyUI's loader and by the pack's", flush=True)
    encoder = demo_encoder.measure(demo_models(), tree)
    save(runs, options.output)
    show(runs, options.output)
    print("\n".join(demo_encoder.lines(demo_models(), encoder)))


def render(server: ComfyServer, client: ComfyClient, prompt: Prompt, what: str) -> Run:
    """Run a prompt on a server without loaded models, and watch its memory."""
    client.free()
    print(f"… rendering {what} ({len(prompt)} nodes)", flush=True)
    with PeakMemory(server.pid) as memory:
        result = client.run(prompt, Progress(prompt, memory))
    images = result.images()
    if not images:
        raise Problem("the workflow saved no picture; it needs a Save Image or Preview Image node.")
    picture = client.view(images[0])
    return Run(picture, memory.whole, memory.since_mark, result.seconds, result.outputs)


class Progress:
    """Prints a line per node that begins, and its steps where it reports them."""

    def __init__(self, prompt: Prompt, memory: PeakMemory) -> None:
        self._prompt, self._memory = prompt, memory
        self._begun, self._started = 0, time.monotonic()

    def __call__(self, node_id: str, step: tuple[int, int] | None) -> None:
        if step is None:
            self._begun += 1
            if "Sampler" in self._prompt[node_id]["class_type"]:
                self._memory.mark()  # from here on every model is loaded and placed
            now = time.monotonic() - self._started
            print(
                f"  {now:5.1f} s  {self._begun:2}/{len(self._prompt)} {name_node(self._prompt, node_id)}",
                flush=True,
            )
        else:
            print(f"           step {step[0]} of {step[1]}", flush=True)


def save(runs: dict[str, Run], folder: Path) -> None:
    """Write the pictures, the report and the measurements; then compare the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in runs.items():
        (folder / f"{name}.png").write_bytes(one.picture)
    measured = {
        name: {
            "seconds": round(one.seconds, 2),
            "peak_bytes": asdict(one.peak),
            "peak_bytes_from_sampler_on": asdict(one.peak_from_sampler_on),
        }
        for name, one in runs.items()
    }
    text, data = report_of(runs["layerwise"])
    (folder / "report.txt").write_text(text + "\n", encoding="utf-8")
    (folder / "report.json").write_text(
        json.dumps({"placement_report": data, "runs": measured}, indent=2) + "\n", encoding="utf-8"
    )
    for report in data[-1:]:
        (folder / "report.svg").write_text(report_svg(report), encoding="utf-8")
    difference = compare(runs["plain"].picture, runs["layerwise"].picture)
    if difference:
        raise Problem(
            f"the two pictures differ: {difference}; compare {shown(folder / 'plain.png')} with "
            f"{shown(folder / 'layerwise.png')}."
        )


def compare(one: bytes, other: bytes) -> str | None:
    """How two pictures differ, or None when every pixel is the same."""
    first, second = _pixels(one), _pixels(other)
    if first.shape != second.shape:
        return f"one has {first.shape[:2]} rows and columns, the other {second.shape[:2]}"
    changed = (first != second).any(axis=-1)
    if not changed.any():
        return None
    return f"{changed.sum()} of {changed.size} pixels, by up to {abs(first - second).max()} of 255"


def _pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA")).astype(int)


def report_of(one: Run) -> tuple[str, list[Any]]:
    """The text and the structured rows of every report node that ran."""
    reports = [output for output in one.outputs.values() if "placement_report" in output]
    if not reports:
        return "The workflow has no Placement Report node.", []
    text = "\n\n".join(line for output in reports for line in output.get("text", []))
    return text, [row for output in reports for row in output["placement_report"]]


def show(runs: dict[str, Run], folder: Path) -> None:
    print(f"\n{report_of(runs['layerwise'])[0]}\n")
    print(
        "Peak resident memory of the ComfyUI process (on the CPU; with Python and torch), and time with loading:"
    )
    for name, one in runs.items():
        print(f"  {name:10} whole run        {one.peak}, {one.seconds:.1f} s")
        print(f"  {'':10} from sampling on {one.peak_from_sampler_on}")
    print(
        "  ComfyUI's loaders read every model whole before the policy can act, so the whole run shows less of it."
    )
    width, height = Image.open(io.BytesIO(runs["plain"].picture)).size
    print(f"The two pictures ({width} by {height}) are identical, pixel for pixel.")
    print(f"Written to {shown(folder)}: plain.png, layerwise.png, report.txt, report.svg, report.json")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workflow", type=Path, default=EXAMPLE, help="a UI or API workflow with nodes of this pack"
    )
    parser.add_argument(
        "--port", default=os.environ.get("PORT") or None, help="port for ComfyUI (default: a free one)"
    )
    parser.add_argument("--output", type=Path, default=DEMO_OUTPUT, help="folder for pictures and report")
    options = parser.parse_args(arguments)
    if options.port is not None:
        if not options.port.isdecimal():
            raise Problem(f"the port is {options.port!r}; give a number from 1024 to 65535.")
        options.port = int(options.port)
    return options


if __name__ == "__main__":
    run(main)
