"""The report as a picture: everything that was measured is in it, in its size, and whatever it holds, it is XML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from facts import component, gb, machine

from offload_runtime.policy import (
    CardPeak,
    HostBytes,
    Measured,
    PlacementRow,
    Policy,
    Report,
    Source,
    SourceKind,
    resolve,
)
from offload_runtime.policy.report_svg import WIDTH, report_svg
from offload_runtime.policy.suggestions import LIFT, Suggestion

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[3]


def report(**changes: Any) -> Report:
    """An encoder that streamed half of it beside a diffusion model, and a VAE that was evicted."""
    facts = component("text_encoder", 8), component("vae", 0.25)
    policy = Policy.from_widgets(
        Source(SourceKind.NODE, "node 1"), placements={"text_encoder": "layerwise", "vae": "resident"}
    )
    streams, whole = resolve(policy, machine(12), facts)
    measured = Measured(True, 1, 2.5, 1.5, (0.5, 3.0), gb(4), 24, gb(7))
    rows = (
        PlacementRow.of(
            facts[0],
            streams,
            applied="layerwise",
            tiers={"cuda:0": gb(2), "slot": gb(0.5), "memory": gb(6)},
            host_now=HostBytes(pinned=gb(6)),
            measured=measured,
        ),
        PlacementRow.of(
            facts[1],
            whole,
            applied="offload",
            how="ComfyUI took it & left <nothing>",
            tiers={"memory": gb(0.25)},
        ),
    )
    card = CardPeak("cuda:0", gb(12), gb(10), "A card", gb(1), {"flux": gb(6), "text_encoder": gb(2)}, "vae")
    given: dict[str, Any] = {"rows": rows, "card": card, "began": 1.0, "peaks": {"process memory": gb(3)}}
    return Report(machine="a machine", **(given | changes))


def drawn(of: Report) -> ElementTree.Element:
    """The picture, from the plain values that travel as JSON."""
    return ElementTree.fromstring(report_svg(json.loads(json.dumps(of.to_dict()))))


def texts(svg: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in svg.iter(f"{SVG}text")]


def widths(svg: ElementTree.Element) -> dict[int, float]:
    """Bytes of a part of a bar → its width."""
    return {int(bar.get("data-bytes", 0)): float(bar.get("width", 0)) for bar in svg.iter(f"{SVG}rect")}


def test_every_number_is_there_and_every_bar_has_its_share() -> None:
    svg = drawn(report())
    said = " ".join(texts(svg))
    for part in (
        "10.00 GB of 12.00 GB at the peak",
        "flux 6.00 GB",
        "vae computing 1.00 GB",
        "other 1.00 GB",
        "free 2.00 GB",
        "◆ layerwise",
        "◆ resident → offload",
        "ComfyUI took it & left <nothing>",
        "computed for 2.5 s, 1.5 s of that waiting for weights, 4.00 GB moved in 24 layer runs",
    ):
        assert part in said, part
    of_component, of_card = widths(svg)[gb(0.5)], widths(svg)[gb(1)]
    assert of_component == pytest.approx((WIDTH - 40) * 0.5 / 8.5, abs=0.01)
    assert of_card == pytest.approx((WIDTH - 40) / 12, abs=0.01)


def test_what_would_help_is_there() -> None:
    one = Suggestion(
        LIFT, "vae", "vae", "Placement Policy", "vae", "placement", "resident", gb(1), 0.4, "it waited"
    )
    svg = drawn(report(suggestions=(one,)))
    assert texts(svg)[-3:] == [one.line, one.effect, "it waited"]
    assert "1.00 GB" in one.effect


def test_nothing_leaves_the_page() -> None:
    svg = drawn(report())
    height = float(svg.get("height", 0))
    for bar in svg.iter(f"{SVG}rect"):
        assert float(bar.get("x", 0)) + float(bar.get("width", 0)) <= WIDTH + 0.01
        assert float(bar.get("y", 0)) + float(bar.get("height", 0)) <= height
    for line in svg.iter(f"{SVG}text"):
        assert 0 < float(line.get("y", 0)) < height


def test_a_cpu_and_a_run_in_which_nothing_computed() -> None:
    svg = drawn(report(card=None, began=0.0, rows=()))
    assert texts(svg) == ["3.00 GB at the peak", "CPU"]


def test_a_report_that_somebody_has_kept_is_drawn_by_the_command(tmp_path: Path) -> None:
    history = {"id": {"outputs": {"9": {"text": ["…"], "placement_report": [report().to_dict()]}}}}
    kept, picture = tmp_path / "history.json", tmp_path / "report.svg"
    kept.write_text(json.dumps(history), encoding="utf-8")
    assert command(kept, picture) == (0, f"written: {picture}")
    svg = ElementTree.parse(picture).getroot()
    assert texts(svg) == texts(drawn(report()))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "is not JSON: Expecting property name"),
        ("{}", "holds no report: no Placement Report node has run in what it tells of"),
        ('{"rows": [{}], "machine": ""}', "the report in it is of another version of the pack"),
    ],
)
def test_what_is_no_report_gets_one_sentence(tmp_path: Path, content: str | None, sentence: str) -> None:
    kept, picture = tmp_path / "run.json", tmp_path / "report.svg"
    if content is not None:
        kept.write_text(content, encoding="utf-8")
    code, said = command(kept, picture)
    assert code == 1
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not picture.exists()


def test_a_picture_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    kept = tmp_path / "run.json"
    kept.write_text(json.dumps(report().to_dict()), encoding="utf-8")
    code, said = command(kept, tmp_path / "nowhere" / "report.svg")
    assert (code, said.endswith("cannot be written: No such file or directory")) == (1, True)


def command(kept: Path, picture: Path) -> tuple[int, str]:
    """Run the command as a person does; return its code and what it says."""
    line = [sys.executable, "-m", "offload_runtime", "report", str(kept), "-o", str(picture)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()
