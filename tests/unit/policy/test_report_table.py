"""The table of the report: what is planned, and what is there now."""

from __future__ import annotations

from dataclasses import replace

from facts import T5, machine

from offload_runtime.policy import PAGED, ComponentFacts, PlacementRow, Policy, decision_table, resolve


def table(of: ComponentFacts, **there: int) -> list[str]:
    decision = resolve(Policy(), machine(24), (of,))[of.name]
    row = PlacementRow.of(of, decision, applied="offload", tiers=there)
    return decision_table([row]).splitlines()


def test_what_comfyui_pages_in_is_planned_for_its_use_and_what_is_there_is_told_apart() -> None:
    head, line = table(replace(T5, can=PAGED), memory=T5.bytes)
    assert "9.50 GB when used" in line
    assert line[head.index("VRAM now") :].split("  ")[0] == "0 B"


def test_what_is_loaded_is_told() -> None:
    head, line = table(T5, **{"cuda:0": T5.bytes // 2, "slot": T5.bytes // 2, "memory": 7})
    assert line[head.index("VRAM now") :].split("  ")[0] == "9.50 GB"
    assert "when used" not in line


def test_without_live_models_nothing_is_there() -> None:
    decision = resolve(Policy(), machine(24), (T5,))["text_encoder"]
    assert "VRAM now" not in decision_table([PlacementRow.of(T5, decision)])
