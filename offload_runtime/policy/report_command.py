"""`python -m offload_runtime report`: a report that ComfyUI has kept, as a picture."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ReportError
from .report_svg import report_svg


def add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those that there are."""
    command = commands.add_parser(
        "report", allow_abbrev=False, help="draw the report of a run as an SVG picture"
    )
    command.add_argument(
        "report",
        type=Path,
        help="JSON: what ComfyUI answers at /history or /history/PROMPT_ID, what make demo writes, or the data of a "
        "Placement Report",
    )
    command.add_argument("-o", "--output", type=Path, required=True, help="the SVG file to write")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> str:
    """Draw the last report in a file, and return what was done, as text for people.

    Raises:
        ReportError: the file cannot be read, holds no report, or the picture cannot be written.
    """
    path: Path = options.report
    try:
        document = json.loads(path.read_bytes())
        found = list(_reports(document))
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} is not JSON: {error}") from error
    if not found:
        raise ReportError(f"{path} holds no report: no Placement Report node has run in what it tells of")
    try:
        picture = report_svg(found[-1])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path}: the report in it is of another version of the pack") from error
    try:
        options.output.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{options.output} cannot be written: {error.strerror}") from None
    return f"written: {options.output}"


def _reports(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the reports that are somewhere in a document, in its order."""
    if isinstance(document, list):
        for item in document:
            yield from _reports(item)
    elif isinstance(document, dict):
        if isinstance(document.get("rows"), list) and "machine" in document:
            yield document
        for value in document.values():
            yield from _reports(value)
