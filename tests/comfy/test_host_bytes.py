"""Host bytes on the CPU: what the plan says of mapped and ordinary memory, and what the live model takes."""

from __future__ import annotations

from pathlib import Path

import comfy.model_management as mm
import models
import pytest
from placing import place, policy


@pytest.mark.parametrize("family", ["clip", "t5", "vae"])
@pytest.mark.parametrize("wish", ["layerwise", "resident", "auto"])
@pytest.mark.parametrize("in_file", [True, False], ids=["file", "no_file"])
def test_a_component_takes_what_was_planned(tmp_path: Path, family: str, wish: str, *, in_file: bool) -> None:
    kind = models.FAMILIES[family]
    placed = place(kind, kind.make(), policy(wish), tmp_path if in_file else None)
    planned = placed.row.host_planned
    assert planned is not None
    assert (planned.mapped > placed.row.bytes / 2) is (in_file and wish == "layerwise")
    assert planned.mapped + planned.pageable == placed.row.bytes
    for _ in range(2):
        kind.run(placed.value)
        assert placed.row.host_now == planned
        assert placed.row.host_now.mapped == placed.row.tiers.get("file", 0)
        assert any(line.endswith("as planned") for line in placed.row.lines())
    mm.unload_all_models()
    assert placed.row.host_now == planned


def test_a_weight_that_is_patched_takes_ordinary_memory(tmp_path: Path) -> None:
    """While the patch is in force; the plan is for the time without."""
    placed = place(models.FAMILIES["clip"], models.clip(), policy("layerwise"), tmp_path)
    models.encode(placed.value)
    weight = next(p for n, p in placed.patcher.model.named_parameters() if n.endswith("fc1.weight"))
    weight.data = weight.data + 1
    row = placed.row
    assert row.host_planned is not None
    assert row.host_now is not None
    assert row.host_now.mapped == row.host_planned.mapped - weight.nbytes
    assert row.host_now.pageable == row.host_planned.pageable + weight.nbytes
    assert any("planned " in line and "; now " in line for line in row.lines())
