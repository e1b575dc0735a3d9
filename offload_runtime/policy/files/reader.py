"""Reading the text of a policy file safely: YAML or JSON in, plain values with their places out.

What comes in may be hostile, so the grammar is a small part of YAML: mappings, sequences and scalars. Tags,
anchors, aliases, merge keys, duplicate keys, several documents, deep nesting, large files and text that is not
UTF-8 are refused, each with its line and column. Scalars stay text, so that YAML's own ideas of `on`, `12:30` or `1e3`
do not come between; the schema reads them. JSON is read by the same rules, of which it is a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from ...errors import PolicyError

MAX_BYTES = 64 * 1024
MAX_DEPTH = 8
MAX_NODES = 4000

Path = tuple[str | int, ...]
Mark = tuple[int, int]


@dataclass(frozen=True)
class RawFile:
    """Plain values of a file, and where they are written.

    Attributes:
        name: what a person calls the file.
        values: the file as dictionaries, lists, texts and None.
        marks: path of a value → its line and column, from 1.
        key_marks: path of a value → line and column of its key.
    """

    name: str
    values: dict[str, Any]
    marks: Mapping[Path, Mark]
    key_marks: Mapping[Path, Mark]

    def error(self, message: str, path: Path = (), *, at_key: bool = False) -> PolicyError:
        """Return the error about a value, placed at it or at the nearest value around it."""
        marks = self.key_marks if at_key else self.marks
        while path and path not in marks:
            path = path[:-1]
        return located(message, self.name, *marks.get(path, (1, 1)))


def located(message: str, name: str, line: int, column: int) -> PolicyError:
    """Return a `PolicyError` that starts with the place."""
    return PolicyError(f"{name}, line {line}, column {column}: {message}", line=line, column=column)


def read_raw(data: bytes | str, name: str) -> RawFile:
    """Read the text of a policy file.

    Args:
        data: the content of the file.
        name: what a person calls it, for errors.

    Raises:
        PolicyError: the text is not a policy file; with line and column.
    """
    text = _decode(data, name)
    plain = _Plain(name)
    try:
        node = _Loader(text).get_single_node()
        values = plain.value(node, ()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        raise located(error.problem or "this is not YAML", name, line, column) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        raise located(
            f"the character U+{ord(text[error.position]):04X} cannot be in a policy file",
            name,
            before.count("\n") + 1,
            error.position - before.rfind("\n"),
        ) from None
    if values is None:  # nothing but comments
        return RawFile(name, {}, {(): (1, 1)}, {})
    if not isinstance(values, dict):
        raise located("a policy file is a mapping, such as “mode: auto”", name, *plain.marks[()])
    return RawFile(name, values, plain.marks, plain.key_marks)


def _decode(data: bytes | str, name: str) -> str:
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_BYTES:
        raise located(
            f"the file has {len(raw)} bytes, and a policy has at most {MAX_BYTES}; is it the right file?",
            name,
            1,
            1,
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        column = error.start - before.rfind(b"\n")
        raise located("the file is not UTF-8 text", name, before.count(b"\n") + 1, column) from None
    # JSON may be indented with tabs, which YAML refuses; inside JSON strings a raw tab is not allowed anyway.
    return text.replace("\t", " ") if text.lstrip("\ufeff \t\r\n").startswith("{") else text


class _Refused(yaml.MarkedYAMLError):
    """A part of YAML that policy files do without."""

    def __init__(self, problem: str, mark: yaml.Mark) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    """Composes nodes and refuses what a policy file has no use for, before anything is built of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose one node, counting it and its depth."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Refused("anchors and aliases are not allowed; write the value out", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise _Refused(f"the tag {str(event.tag)[:40]} is not allowed", event.start_mark)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _Refused(f"a policy has at most {MAX_NODES} values", event.start_mark)
        if self._depth >= MAX_DEPTH:
            raise _Refused(f"a policy is nested at most {MAX_DEPTH} deep", event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Plain:
    """Turns nodes into plain values and notes where each is written."""

    def __init__(self, name: str) -> None:
        self.marks: dict[Path, Mark] = {}
        self.key_marks: dict[Path, Mark] = {}
        self._name = name

    def value(self, node: yaml.Node, path: Path) -> Any:
        """Return a node as a dictionary, list, text or None."""
        self.marks[path] = _mark(node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.style is None and node.tag == "tag:yaml.org,2002:null":
            return None
        return self._text(node)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise located("a key is a word, not a list or a mapping", self._name, *_mark(key_node))
            key = self._text(key_node)
            place = (*path, key)
            if key in result:
                first = self.key_marks[place][0]
                raise located(
                    f"“{key}” is there twice; it is on line {first} already", self._name, *_mark(key_node)
                )
            self.key_marks[place] = _mark(key_node)
            result[key] = self.value(value_node, place)
        return result

    def _text(self, node: yaml.Node) -> str:
        try:  # a JSON escape writes a character beyond the first plane as two halves
            return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise located(
                "half a character: a \\ud… escape without its pair", self._name, *_mark(node)
            ) from None


def _mark(node: yaml.Node) -> Mark:
    return node.start_mark.line + 1, node.start_mark.column + 1
