"""The sentences that the server hands to the browser: reasons, limits, and how a placement is carried out.

They are made in Python, in English. The browser knows them again by their templates, in which `{0}`, `{1}` … stand for
what is put in, and shows them in the person's language: `layerwiseOffloadSentences` in `locales/<language>/main.json`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .places import ROOT

SAYING = (
    *(f"offload_runtime/policy/{name}.py" for name in ("beside", "bounds", "capabilities", "facts", "host")),
    *(
        f"offload_runtime/policy/{name}.py"
        for name in ("lessons", "limits", "resolver", "rounds", "rules", "situation")
    ),
    *(f"offload_runtime/adapter/{name}.py" for name in ("applied", "backends", "capabilities", "choose")),
    *(f"offload_runtime/adapter/{name}.py" for name in ("giving_way", "standing")),
)
"""The modules whose words get into a report's rows; those of others are for errors, or parts of names."""

JOINTS = ("{0}; but {1}", "{0}; {1}", "{0} less {1}", "{0} ({1})", "{0} and {1}", "{0}, {1}")
"""By which sentences and their parts are put together; the browser takes them apart in this order."""

PARTED = (
    "on {0} out of slots of {1}, each copied from the model file {2}",
    "on {0} out of slots of {1}, each copied from memory ({2} pinned) {3}",
)
"""Those of which nobody could say where one place ends and the next begins."""

SOURCES = (
    "Placement Policy, node {0}",
    "Set Placement, node {0}",
    "policy text, node {0}",
    "{0}, linked from {1}",
)
"""How the nodes name themselves as the place where a value comes from."""


def templates() -> set[str]:
    """Return the templates of all sentences, and of those of their parts that are words."""
    found = {
        template.removeprefix("; ")
        for file in SAYING
        for template in _said(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        if " " in template.strip()
        and "%s" not in template
        and re.search("[a-z]", re.sub(r"{\d}", "", template))
    }
    return found - {"but "} | {*JOINTS, *PARTED, *SOURCES}


def _said(node: ast.AST) -> Iterator[str]:
    """Yield the texts of a piece of code that are no docstrings, and not the words of an error."""
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if isinstance(child, ast.Raise) or is_docstring:
            continue
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        elif isinstance(child, ast.JoinedStr):
            values = [part for part in child.values if isinstance(part, ast.FormattedValue)]
            yield "".join(
                f"{{{values.index(part)}}}"
                if isinstance(part, ast.FormattedValue)
                else ast.literal_eval(part)
                for part in child.values
            )
            for part in values:
                yield from _said(part.value)
        else:
            yield from _said(child)
