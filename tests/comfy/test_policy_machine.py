"""The facts of the machine, and policies that bound, fall back or are refused on it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import psutil
import pytest
from placing import SOURCE, place, policy

from offload_runtime.adapter import Placements, apply_policy, hardware, host_memory
from offload_runtime.errors import StrictPolicyError
from offload_runtime.policy import Policy, resolve

GB = 1024**3
CLIP = models.FAMILIES["clip"]


@pytest.fixture
def args(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Start ComfyUI with other flags, as far as they are read later."""
    from comfy.cli_args import args

    def started_with(**flags: Any) -> None:
        for name, value in flags.items():
            monkeypatch.setattr(args, name, value, raising=False)

    started_with(cpu=False)
    return started_with


def test_flags_are_read_as_typed_and_only_when_given(args: Callable[..., None]) -> None:
    assert hardware.machine_facts().flags == ()
    args(cpu_vae=True, reserve_vram=2.5, async_offload=4, novram=False)
    assert hardware.machine_facts().flags == ("--cpu-vae", "--reserve-vram 2.5", "--async-offload 4")


def test_every_flag_that_this_comfyui_knows_is_known(args: Callable[..., None]) -> None:
    from comfy.cli_args import parser

    known = {option for action in parser._actions for option in action.option_strings}
    bearing = {
        o
        for o in known
        if any(word in o for word in ("vram", "gpu-only", "offload", "pinned", "smart", "cpu"))
        or re.search(r"^--(disable-mmap|directml)$|^--(fp|bf)[^-]*-(text-enc|vae|unet)$|^--force-fp", o)
    }
    assert len(bearing) > 20
    assert bearing <= {*hardware.FLAGS}


@pytest.mark.parametrize(("device", "typed"), [(0, "--directml 0"), (1, "--directml 1"), (-1, "--directml")])
def test_the_number_of_a_device_is_a_flag_that_was_given(
    device: int, typed: str, args: Callable[..., None]
) -> None:
    args(directml=device)
    assert hardware.machine_facts().flags == (typed,)


@pytest.mark.parametrize("dynamic", [False, True])
def test_headroom_is_taken_off_where_dynamic_vram_keeps_it(
    dynamic: bool, gpu: SimpleNamespace, args: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import comfy

    gpu.total = 16 * GB
    args(vram_headroom=8.0)
    memory = SimpleNamespace(aimdo_enabled=dynamic)
    monkeypatch.setattr(comfy, "memory_management", memory, raising=False)
    facts = hardware.machine_facts()
    assert facts.inference_reserve == (8 * GB if dynamic else 0)
    plan = resolve(Policy(), facts, ())
    assert plan.room_bytes == (8 * GB if dynamic else 16 * GB)
    assert ("for activations and --vram-headroom 8" in plan.room) == dynamic
    manager = "ComfyUI's dynamic VRAM" if dynamic else "ComfyUI's legacy memory manager"
    assert manager in hardware.machine_line(facts)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is read from /proc")
def test_a_report_leaves_out_a_peak_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text
    assert hardware.peaks()["process memory"] > 0

    def without_status(path: Path, *args: Any, **options: Any) -> str:
        if path == Path("/proc/self/status"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", without_status)
    assert hardware.peaks() == {}


def test_facts_without_an_accelerator() -> None:
    facts = hardware.machine_facts()
    assert (facts.device, facts.accelerator, facts.vram_total, facts.accelerators) == ("cpu", False, 0, 0)
    assert "manager" not in hardware.machine_line(facts)
    assert facts.ram_total <= psutil.virtual_memory().total
    assert "--cpu" in facts.flags


def test_memory_of_other_programs_is_what_comfyui_has_not_loaded(gpu: SimpleNamespace) -> None:
    import comfy.model_management as mm

    gpu.total = 8 * GB
    value = CLIP.make()
    gpu.used = lambda: 3 * GB
    assert hardware.machine_facts().vram_others == 3 * GB
    mm.load_models_gpu([value.patcher])
    loaded = value.patcher.loaded_size()
    assert loaded > 0
    assert hardware.machine_facts().vram_others == 3 * GB - loaded


def _group(mine: str, level: str, *, limit: int, used: int) -> dict[str, str]:
    """Return the files of a process in the group `mine` when the group at `level` has a limit."""
    folder = f"sys/fs/cgroup/{level}"
    return {
        "proc/self/cgroup": f"0::{mine}",
        f"{folder}/memory.max": str(limit),
        f"{folder}/memory.current": str(used),
    }


def _files(level: str, **contents: str) -> dict[str, str]:
    """Return further files of a group: `max`, `high`, `stat`."""
    return {f"sys/fs/cgroup/{level}/memory.{name}": text for name, text in contents.items()}


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        ({}, 64, 32),
        (_group("/a/b", "a", limit=8, used=3), 8, 5),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/memory.max": "max",
                "sys/fs/cgroup/a/memory.max": "16",
                "sys/fs/cgroup/a/memory.current": "12",
                "sys/fs/cgroup/a/memory.stat": "file 9\ninactive_file 4\n",
                "sys/fs/cgroup/memory.max": "12",
                "sys/fs/cgroup/memory.current": "4",
            },
            12,
            8,
        ),
        # inside a container the path is the host's, and the container's own group is the mount
        (_group("/docker/x", ".", limit=4, used=5), 4, 0),
        (
            {
                "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/g\n1:cpu:/\n",
                "sys/fs/cgroup/memory/g/memory.limit_in_bytes": "10",
                "sys/fs/cgroup/memory/g/memory.usage_in_bytes": "9",
                "sys/fs/cgroup/memory/g/memory.stat": "total_inactive_file 2\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            10,
            3,
        ),
        (_group("/a", "a", limit=100, used=1), 64, 32),
        # the kernel slows a group down at `high`, long before it ends one at `max`
        (_group("/a", "a", limit=20, used=3) | {"sys/fs/cgroup/a/memory.high": "8"}, 8, 5),
        (_group("/a", "a", limit=8, used=3) | {"sys/fs/cgroup/a/memory.high": "max"}, 8, 5),
        (_group("/a", "a", limit=0, used=3) | _files("a", max="max", high="8"), 8, 5),
        # both lists of the page cache can be given back
        (
            _group("/a", "a", limit=8, used=7)
            | _files("a", stat="anon 1\ninactive_file 1\nactive_file 5\n"),
            8,
            7,
        ),
        # both versions side by side: the second one is mounted inside the first one's folder
        (
            {
                "proc/self/cgroup": "3:cpu:/\n1:name=systemd:/u\n0::/u\n",
                "sys/fs/cgroup/unified/cgroup.procs": "",
                "sys/fs/cgroup/unified/u/memory.max": "8",
                "sys/fs/cgroup/unified/u/memory.current": "3",
            },
            8,
            5,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/g\n0::/g\n",
                "sys/fs/cgroup/unified/cgroup.procs": "",
                "sys/fs/cgroup/memory/g/memory.limit_in_bytes": "10",
                "sys/fs/cgroup/memory/g/memory.usage_in_bytes": "9",
                "sys/fs/cgroup/memory/g/memory.stat": "total_active_file 4\ntotal_inactive_file 2\n",
            },
            10,
            7,
        ),
    ],
)  # fmt: skip
def test_a_container_has_what_it_is_given(
    files: dict[str, str], total: int, available: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64, available=32))
    assert host_memory.host_memory(tmp_path) == (total, available)


def test_a_wish_that_a_flag_forbids_is_bounded_and_the_flag_is_named(
    gpu: SimpleNamespace, args: Callable[..., None]
) -> None:
    args(gpu_only=True)
    row = place(CLIP, CLIP.make(), policy("layerwise")).row
    assert (row.asked, row.decided, row.applied) == ("layerwise", "resident", "offload")  # not loaded yet
    assert "--gpu-only keeps every weight on the device" in row.why


def test_a_strict_policy_stops_before_anything_is_attached(
    gpu: SimpleNamespace, args: Callable[..., None]
) -> None:
    args(novram=True)
    value = CLIP.make()
    strict = policy("resident").extended(Policy.from_widgets(SOURCE, strict="on"))
    with pytest.raises(StrictPolicyError, match="--novram lets no weights stay on the device"):
        apply_policy(strict, {"clip": value}, {}, Placements())
    assert not value.patcher.attachments


def test_a_policy_from_a_larger_machine_is_used_as_far_as_it_goes(gpu: SimpleNamespace) -> None:
    gpu.total = 8 * GB
    wish = policy("layerwise", vram_budget="48GB")
    wish = wish.extended(Policy.for_component(SOURCE, "text_encoder", device="gpu:1"))
    wish = wish.extended(Policy.for_component(SOURCE, "vocoder", placement="cpu"))
    placed = place(CLIP, CLIP.make(), wish)
    text = placed.placements.report().text()
    assert placed.row.applied == "layerwise"
    assert "gpu:1 from" in placed.row.why
    assert "asks for a VRAM budget of 48.00 GB, and the card has 8.00 GB" in text
    assert "vocoder is not in this workflow" in text


def test_loaders_in_a_row_share_the_room(gpu: SimpleNamespace) -> None:
    first, second = CLIP.make(0), CLIP.make(1)
    from comfy.model_management import module_size

    gpu.total = int(1.5 * module_size(first.patcher.model))
    _, placements = apply_policy(Policy(), {"clip": first}, {}, Placements())
    _, placements = apply_policy(Policy(), {"clip": second}, {}, placements)
    assert [row.decided for row in placements.report().rows] == ["resident", "layerwise"]
    assert "of an earlier loader" in placements.report().rows[1].why


def test_the_report_shows_the_table_of_the_plan(gpu: SimpleNamespace) -> None:
    placed = place(CLIP, CLIP.make(), policy("layerwise", vram_budget="1MB"))
    text = placed.placements.report().text()
    head, line = text.split("\n\n")[1].splitlines()
    assert head.split("  ")[0] == "component"
    assert head.split()[1:5] == ["weights", "asked", "decided", "applied"]
    assert line.split()[0] == "text_encoder"
    assert line.split()[3:6] == ["layerwise", "layerwise", "layerwise"]
