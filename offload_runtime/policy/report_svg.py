"""The report as a picture, where there is no browser: what its panel in ComfyUI shows, as one SVG for both themes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from .measured import CardPeak, Measured, format_seconds
from .quantities import format_bytes

WIDTH = 480
_PAD = 20
_INNER = WIDTH - 2 * _PAD
_LETTER = 0.54
"""The width of an average letter of a sans-serif font, as a share of the font's size."""

_FILL = {
    "model-0": "#3b82f6",
    "model-1": "#0ea5a4",
    "model-2": "#e879a8",
    "model-3": "#84a93c",
    "slot": "#f59e0b",
    "pinned": "#14b8a6",
    "pageable": "#10b981",
    "file": "#8b8d98",
    "other": "#8b8d98",
    "computing": "#a855f7",
}
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #222; } .quiet { fill: #666; } .bold { font-weight: 600; }
.ground { fill: #e9e9e9; } .empty { fill: #cfcfcf; } .line { stroke: #bbb; } .chip { fill: none; stroke: #999; }
.differs { stroke: #d97706; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8e8e8; } .quiet { fill: #a5a5ad; } .ground { fill: #26272b; } .empty { fill: #3a3b40; }
  .line { stroke: #4a4b52; } .chip { stroke: #7c7d86; } .differs { stroke: #f59e0b; }
}
"""


class Part(NamedTuple):
    """A part of a bar: which colour, what it is called, and how many bytes it stands for."""

    kind: str
    name: str
    bytes: int


def report_svg(report: Mapping[str, Any]) -> str:
    """Draw a report.

    Args:
        report: the plain values of `Report.to_dict`, as the report's node hands them on.

    Raises:
        KeyError, TypeError: they are no such values.
    """
    page = _Page()
    _head(page, report)
    rows = report["rows"]
    largest = max((sum(part.bytes for part in parts_of(row)) for row in rows), default=1)
    for row in rows:
        _component(page, row, max(1, largest))
    _when(page, rows)
    for one in report["suggestions"]:
        _suggestion(page, one)
    return page.svg()


def parts_of(row: Mapping[str, Any]) -> list[Part]:
    """Return where the bytes of a component are, from the device outwards."""
    tiers = dict(row["tiers"])
    slot, memory, file = (tiers.pop(name, 0) for name in ("slot", "memory", "file"))
    host = row["host_now"] or {"mapped": file, "pinned": 0, "pageable": memory}
    parts = [Part("model-0", name, size) for name, size in tiers.items()]
    parts += [
        Part("slot", "slots", slot),
        Part("pinned", "pinned", host["pinned"]),
        Part("pageable", "memory", host["pageable"]),
        Part("file", "file", host["mapped"]),
    ]
    return [part for part in parts if part.bytes > 0]


def card_parts(card: CardPeak) -> list[Part]:
    """Return what the card held when the most of it was in use, what was free last."""
    models = [Part(f"model-{i % 4}", name, size) for i, (name, size) in enumerate(card.models.items())]
    computing = f"{card.during} computing" if card.during else "loading"
    parts = [*models, Part("computing", computing, card.computing), Part("other", "other", card.other)]
    return [part for part in (*parts, Part("free", "free", card.total - card.used)) if part.bytes > 0]


class _Page:
    """What has been drawn, and how far down."""

    def __init__(self) -> None:
        self.y = _PAD
        self._drawn: list[str] = []

    def text(self, x: float, text: str, style: str = "", anchor: str = "start") -> None:
        """Write on the current line."""
        self._drawn.append(
            f'<text x="{x:.0f}" y="{self.y + 12}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def wrapped(self, text: str, style: str = "quiet") -> None:
        """Write a text over as many lines as it takes."""
        for line in textwrap.wrap(text, int(_INNER / (12 * _LETTER))):
            self.text(_PAD, line, style)
            self.y += 17

    def line(self) -> None:
        """Draw a line across."""
        self._drawn.append(f'<path class="line" d="M{_PAD} {self.y}H{WIDTH - _PAD}"/>')
        self.y += 8

    def bar(self, parts: Iterable[Part], whole: int, height: int) -> None:
        """Draw parts of a whole side by side; each says what it is when somebody points at it."""
        self.box(_PAD, _INNER, height, "empty")
        x = float(_PAD)
        for part in parts:
            width = _INNER * part.bytes / whole
            if part.kind in _FILL:
                self._drawn.append(
                    f'<rect x="{x:.2f}" y="{self.y}" width="{width:.2f}" height="{height}" fill="{_FILL[part.kind]}" '
                    f'data-bytes="{part.bytes}"><title>{escape(_named(part))}</title></rect>'
                )
            x += width
        self.y += height + 4

    def box(self, x: float, width: float, height: int, style: str, fill: str = "", round_by: int = 0) -> None:
        """Draw a rectangle at the current line."""
        paint = f"fill={quoteattr(fill)}" if fill else f"class={quoteattr(style)}"
        self._drawn.append(
            f'<rect x="{x:.2f}" y="{self.y}" width="{width:.2f}" height="{height}" rx="{round_by}" {paint}/>'
        )

    def svg(self) -> str:
        height = self.y + _PAD
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
                f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Placement Report">',
                f"<style>{_STYLE}</style>",
                f'<rect class="ground" width="{WIDTH}" height="{height}" rx="10"/>',
                *self._drawn,
                "</svg>\n",
            ]
        )


def _head(page: _Page, report: Mapping[str, Any]) -> None:
    card = CardPeak(**report["card"]) if report["card"] else None
    if card is not None:
        title, where = f"{format_bytes(card.used)} of {format_bytes(card.total)}", card.name or card.device
    else:
        title, where = format_bytes(report["peaks"].get("process memory", 0)), "CPU"
    began = f" · run at {datetime.fromtimestamp(report['began']):%H:%M}" if report["began"] else ""
    page.text(_PAD, f"{title} at the peak", "bold")
    page.text(WIDTH - _PAD, where + began, "quiet", "end")
    page.y += 22
    if card is not None:
        parts = card_parts(card)
        page.bar(parts, card.total, 18)
        _legend(page, parts)


def _legend(page: _Page, parts: Sequence[Part]) -> None:
    x = float(_PAD)
    for part in parts:
        width = 16 + _wide(_named(part)) + 10
        if x > _PAD and x + width > WIDTH - _PAD:
            x, page.y = _PAD, page.y + 18
        if part.kind in _FILL:
            page.y += 3
            page.box(x, 9, 9, "", _FILL[part.kind], 2)
            page.y -= 3
        page.text(x + 13, _named(part))
        x += width
    page.y += 24


def _component(page: _Page, row: Mapping[str, Any], largest: int) -> None:
    page.line()
    asked, applied = row["asked"], row["applied"]
    differs = asked != "auto" and applied not in ("", asked)
    chip = _chip(asked, row["decided"], applied)
    page.text(_PAD, row["component"], "bold")
    page.text(WIDTH - _PAD, format_bytes(row["bytes"]), "", "end")
    width = _wide(chip) + 18
    right = WIDTH - _PAD - 80
    page.y -= 2
    page.box(right - width, width, 19, "chip differs" if differs else "chip", round_by=9)
    page.y += 2
    page.text(right - width / 2, chip, "", "middle")
    page.y += 22
    page.bar(parts_of(row), largest, 5)
    for line in _measured(row["measured"]):
        page.wrapped(line)
    if differs:
        page.wrapped(f"{row['how']}. {row['why']}", "")
    page.y += 6


def _chip(asked: str, decided: str, applied: str) -> str:
    """Return what was asked for, and what it became; as the panel says it."""
    words = [asked, *([_word(decided)] if decided != asked or asked == "auto" else [])]
    if applied and _word(applied) != _word(decided):
        words.append(_word(applied))
    return f"{'◇' if asked == 'auto' else '◆'} {' → '.join(words)}"


def _word(placement: str) -> str:
    return "left to ComfyUI" if placement in ("auto", "comfyui") else placement


def _measured(measured: Mapping[str, Any] | None) -> Iterator[str]:
    yield ", ".join(Measured(**measured).says()) if measured else "not used yet"


def _when(page: _Page, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw when each component computed in this run."""
    ran = [(row["component"], row["measured"]["moments"]) for row in rows if _is_of_this_run(row)]
    ran.sort(key=lambda one: one[1][0])
    end = max((moments[1] for _, moments in ran), default=0)
    if end <= 0:
        return
    page.line()
    page.text(_PAD, "When", "bold")
    page.y += 20
    left = _PAD + max(_wide(name) for name, _ in ran) + 10
    scale = (WIDTH - _PAD - left) / end
    for name, (begin, until) in ran:
        page.text(_PAD, name, "quiet")
        page.y += 3
        page.box(left + begin * scale, max(1, (until - begin) * scale), 9, "", _FILL["model-0"])
        page.y += 14
    page.text(left, "0 s", "quiet")
    page.text(WIDTH - _PAD, format_seconds(end), "quiet", "end")
    page.y += 14


def _suggestion(page: _Page, one: Mapping[str, Any]) -> None:
    page.y += 6
    page.line()
    page.text(_PAD, one["line"], "bold")
    page.y += 18
    page.wrapped(one["effect"], "")
    page.wrapped(one["why"])


def _is_of_this_run(row: Mapping[str, Any]) -> bool:
    measured = row["measured"]
    return bool(measured and measured["in_this_run"] and measured["moments"])


def _named(part: Part) -> str:
    return f"{part.name} {format_bytes(part.bytes)}"


def _wide(text: str) -> float:
    return len(text) * 12 * _LETTER
