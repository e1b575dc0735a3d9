"""`python -m offload_runtime place`: workflows on the command line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..errors import PolicyError, WorkflowError
from ..policy import Source, SourceKind
from ..policy.files import parse_policy
from .document import Placing, is_ui, place, remove
from .types import Types, of_comfyui_loaders, of_object_info


def add_place(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those that there are."""
    command = commands.add_parser(
        "place",
        allow_abbrev=False,
        help="put Layerwise Offload Loaders into a workflow, or take them out again",
    )
    command.add_argument("workflow", type=Path, help="a workflow as ComfyUI saves it, or an API prompt")
    wanted = command.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--policy", type=Path, help="the policy file that holds for all of them")
    wanted.add_argument(
        "--remove", action="store_true", help="take out what this command, or the browser, put in"
    )
    command.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    command.add_argument(
        "--object-info",
        type=Path,
        help="what ComfyUI answers at /object_info, saved to a file: with it, an API prompt's nodes of other packs "
        "are known (default: ComfyUI's own loaders are known)",
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> str:
    """Do it, and return what was done, as text for people.

    Raises:
        PolicyError: the policy cannot be read.
        WorkflowError: another file cannot be read or written.
    """
    document = _json(options.workflow)
    try:
        if options.remove:
            made, count = remove(document)
            text = f"removed {_count(count, 'node')}" if count else "there is nothing to remove"
        else:
            done = place(document, _policy(options.policy), _types(options.object_info))
            made, text = done.document, _told(done)
    except WorkflowError as error:
        raise WorkflowError(f"{options.workflow}: {error}") from error
    indent = 2 if not is_ui(made) else None
    try:
        options.output.write_text(
            json.dumps(made, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    except OSError as error:
        raise WorkflowError(f"{options.output} cannot be written: {error.strerror}") from None
    return f"{text}\nwritten: {options.output}"


def _told(done: Placing) -> str:
    lines = [
        f"placed {_count(done.sources, 'model')} in {_count(done.loaders, 'Loader')}"
        if done.loaders
        else "there is nothing to place: no loader that is not placed already hands out what a Loader takes"
    ]
    for left in done.left_out:
        where = f" in subgraph {left.scope}" if left.scope else ""
        lines.append(f"not placed: node {left.node} ({left.kind}){where}: {left.reason}")
    return "\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _policy(path: Path) -> str:
    """Return the text of a policy file, which is read to see that it is one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror}") from None
    parse_policy(data, Source(SourceKind.FILE, str(path)))
    return data.decode("utf-8-sig")


def _types(path: Path | None) -> Types:
    if path is None:
        return of_comfyui_loaders
    try:
        return of_object_info(_json(path))
    except ValueError as error:
        raise WorkflowError(f"{path}: {error}") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise WorkflowError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise WorkflowError(f"{path} is not JSON: {error}") from error
