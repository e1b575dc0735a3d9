"""The coverage table: rows, written and read as Markdown."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).resolve().parents[2] / "docs" / "coverage.md"
HEADER = """# Coverage

Generated from the test run by `python -m scripts.refresh_coverage`; do not edit.

Each family is built tiny from its ComfyUI class with random weights and used as ComfyUI uses it, once resident and
twice with its layers streamed. The results are equal bit for bit, every layer is called unless the notes say
otherwise, and no weight of a layer is read while that layer does not run. Layer counts and shares are those of the
released geometry.

"""
COLUMNS = ("family", "class", "stacks (layers)", "share of weights", "order", "ComfyUI", "notes")


class Row(NamedTuple):
    """One line of the table, without the versions that it holds for."""

    kind: str
    family: str
    model: str
    layers: str
    share: str
    order: str
    notes: str


def render(rows_of: dict[str, Sequence[Row]]) -> str:
    """Return the table for some versions: version → rows."""
    versions: dict[Row, list[str]] = {}
    for version, rows in rows_of.items():
        for row in rows:
            versions.setdefault(Row(*row), []).append(version)
    longest_first = sorted(rows_of.values(), key=len, reverse=True)
    order = list(dict.fromkeys((row[0], row[1]) for rows in longest_first for row in rows))
    lines = []
    for kind in dict.fromkeys(kind for kind, _ in order):
        lines += [f"## {_title(kind)}s", "", _line(*COLUMNS), _line(*["---"] * len(COLUMNS))]
        of_kind = sorted(
            (r for r in versions if r.kind == kind), key=lambda r: order.index((r.kind, r.family))
        )
        lines += [_line(*_cells(row, versions[row])) for row in of_kind] + [""]
    return HEADER + "\n".join(lines)


def _cells(row: Row, versions: Sequence[str]) -> tuple[str, ...]:
    return (row.family, f"`{row.model}`", row.layers, row.share, row.order, ", ".join(versions), row.notes)


def _title(kind: str) -> str:
    return kind.upper() if kind == "vae" else kind.capitalize()


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def documented(version: str) -> set[Row]:
    """Read the rows that the table holds for a version."""
    rows, kind = set(), ""
    for line in TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else ():
        if line.startswith("## "):
            kind = line[3:-1].lower()
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == len(COLUMNS) and version in cells[5].split(", "):
            rows.add(Row(kind, cells[0], cells[1].strip("`"), *cells[2:5], cells[6].rstrip(" |")))
    return rows


def main(collected: Path) -> None:
    """Examine this ComfyUI, add its rows to those collected, and write the table of all of them."""
    import comfyui_version
    from coverage_examine import all_findings

    findings = all_findings()
    faults = [f"{finding.row.family}: {fault}" for finding in findings for fault in finding.faults]
    if faults:
        sys.exit("\n".join(faults))
    rows = json.loads(collected.read_text()) if collected.exists() else {}
    rows[comfyui_version.__version__] = [finding.row for finding in findings]
    collected.write_text(json.dumps(rows))
    TABLE.write_text(render(rows), encoding="utf-8")
