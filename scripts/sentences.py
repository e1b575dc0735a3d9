"""The sentences that the server hands to the browser: the report, its reasons and limits, and errors.

They are made in Python, in English. The browser knows them again by their templates, in which `{0}`, `{1}` … stand for
what is put in, and shows them in the person's language: `layerwiseOffloadSentences` in `locales/<language>/main.json`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .places import ROOT

SAYING = (
    *(f"offload_runtime/policy/{name}.py" for name in ("giving_room", "lifting", "suggestions")),
    *(f"offload_runtime/policy/{name}.py" for name in ("beside", "bounds", "capabilities", "facts", "host")),
    *(
        f"offload_runtime/policy/{name}.py"
        for name in ("lessons", "limits", "measured", "report", "resolver", "rounds", "rules", "situation")
    ),
    *(f"offload_runtime/adapter/{name}.py" for name in ("applied", "backends", "capabilities", "choose")),
    *(
        f"offload_runtime/adapter/{name}.py"
        for name in ("giving_way", "hardware", "loading", "making_room", "placed")
    ),
    *(f"offload_runtime/adapter/{name}.py" for name in ("machine", "standing", "timeline", "weight_files")),
    *(f"offload_runtime/{name}.py" for name in ("check/measure", "policy/machine_text")),
    *(f"offload_runtime/engine/check/{name}.py" for name in ("claims", "equality", "kinds")),
)
"""The modules whose words get into a report; what they raise is for who calls them."""

REFUSING = (
    *(f"offload_runtime/policy/{name}.py" for name in ("hints", "kinds", "quantities", "selectors")),
    *(f"offload_runtime/policy/files/{name}.py" for name in ("codec", "folder", "legacy", "reader")),
    *(f"offload_runtime/adapter/{name}.py" for name in ("contacts", "handles")),
    "offload_runtime/engine/weight_file.py",
    "nodes/loader.py",
)
"""The modules whose errors end a run, or answer a policy file."""

NAMING = ("Contact", "Source", "compile", "known_options", "search")
"""What is called with words that are no sentences: names, patterns, or what a node says of itself."""

JOINTS = (
    *("{0}; but {1}", "{0}: {1}", "{0}; {1}", "{0} → {1}", "{0} less {1}", "{0} ({1})"),
    *("{0} and {1}", "{0}, {1}", "{0} from {1}"),
)
"""By which sentences and their parts are put together; the browser takes them apart in this order."""

PARTED = (
    "on {0} out of slots of {1}, each copied from the model file {2}",
    "on {0} out of slots of {1}, each copied from memory ({2} pinned) {3}",
    "on {0} out of slots of {1}, each copied from memory {2}",
)
"""Those of which nobody could say where one place ends and the next begins."""

SOURCES = (
    "Placement Policy, node {0}",
    "Set Placement, node {0}",
    "policy text, node {0}",
    "{0}, linked from {1}",
)
"""How the nodes name themselves as the place where a value comes from."""


WORDS = (
    *("memory {0}", "file {0}", "slot {0}", "{0} mapped", "{0} pinned", "{0} pageable", "planned none"),
    "planned none; now {0}",
    *("host tier", "did you mean {0} or {1}?", "did you mean {0} or {1} or {2}?"),
)
"""What is put together from names and lists in the code."""

YAML = (
    "mapping values are not allowed here",
    "could not find expected {0}",
    "found character {0} that cannot start any token",
    "found unexpected end of stream",
    "expected the node content, but found {0}",
    "expected <block end>, but found {0}",
)
"""What the YAML library says of a file, where that is often."""

NO_SENTENCES = {"but ", "version: {0}"}


def templates() -> set[str]:
    """Return the templates of all sentences, and of those of their parts that are words."""
    found = {
        part.removeprefix("; ")
        for files, errors in ((SAYING, False), (REFUSING, True))
        for file in files
        for template in _said(ast.parse((ROOT / file).read_text(encoding="utf-8")), errors=errors)
        for part in template.split(" · ")  # the browser takes lines apart there
        if " " in part.strip()
        and "%s" not in part
        and "\n" not in part
        and re.search("[a-z]", re.sub(r"{\d}", "", part))
    }
    return found - NO_SENTENCES | {*JOINTS, *PARTED, *SOURCES, *WORDS, *YAML}


def _said(node: ast.AST, *, errors: bool) -> Iterator[str]:
    """Yield the texts of a piece of code that are no docstrings; the words of its errors only where they count."""
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if is_docstring or _is_naming(child) or (isinstance(child, ast.Raise) and not errors):
            continue
        if isinstance(child, ast.Call) and _called(child) == "_words":
            yield from _said(ast.Tuple(child.args[:1]), errors=errors)  # the others are words to look up
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
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
                yield from _said(part.value, errors=errors)
        else:
            yield from _said(child, errors=errors)


def _is_naming(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(isinstance(base, ast.Name) and base.id == "Enum" for base in node.bases)
    return isinstance(node, ast.Call) and _called(node) in NAMING


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
