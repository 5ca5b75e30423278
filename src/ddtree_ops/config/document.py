"""Reads a YAML document with the place of each part; refuses what YAML 1.1 and 1.2 read differently."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ddtree_ops.config.problems import ConfigProblem, Loc, Problem, dotted

_MAX_NODES = 50_000
_TAG = "tag:yaml.org,2002:"
_BOOL_11 = re.compile(r"(?:yes|no|on|off)", re.IGNORECASE)
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_OCTAL_11 = re.compile(r"[-+]?0[0-9_]+")
_UNDERSCORED = re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?")
Place = tuple[int, int]


@dataclass
class Document:
    """A document's plain value, and where each part of it stands (line and column from 1)."""

    data: Any = None
    keys: dict[Loc, Place] = field(default_factory=dict)
    values: dict[Loc, Place] = field(default_factory=dict)
    texts: dict[Loc, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)  # paths whose value no reader can be sure of

    def place(self, loc: Loc, key: bool = False) -> Place:
        """Return where `loc` stands, or the nearest part around it."""
        first, second = (self.keys, self.values) if key else (self.values, self.keys)
        for end in range(len(loc), -1, -1):
            if loc[:end] in first or loc[:end] in second:
                return first.get(loc[:end]) or second[loc[:end]]
        return 1, 1


def read_document(path: Path, verbatim: frozenset[str] = frozenset()) -> Document:
    """Read `path`. Under a key named in `verbatim`, scalars keep the text that stands there (`1`, `true`).

    Raises ConfigProblem where the file is missing, unreadable, no UTF-8 or no YAML; faults after which
    reading can go on are collected in `.problems`.
    """
    return parse_document(read_text(path), path, verbatim)


def read_text(path: Path) -> str:
    """Return the file as text. Raises ConfigProblem with the place of the first byte that is no UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        if path.is_dir():
            raise ConfigProblem(path, [Problem(1, 1, "", "is a directory, not a file")]) from None
        step = "ddtree-ops init" if isinstance(error, FileNotFoundError) else f"ls -l {path}"
        message = f"cannot be read: {error.strerror}"
        raise ConfigProblem(path, [Problem(1, 1, "", message)], next=step) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        message = f"not UTF-8: byte 0x{raw[error.start]:02x}; save the file as UTF-8"
        raise ConfigProblem(path, [Problem(line, column, "", message)]) from None


def parse_document(text: str, path: Path, verbatim: frozenset[str] = frozenset()) -> Document:
    """As `read_document`, from text; `path` only names the file in messages."""
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        raise ConfigProblem(path, _syntax(error, text)) from None
    except (YAMLError, RecursionError, ValueError) as error:
        raise ConfigProblem(path, [_unreadable(error, text)]) from None
    document = Document()
    if node is None:
        raise ConfigProblem(path, [Problem(1, 1, "", "the file is empty")], next="ddtree-ops init")
    try:
        document.data = _Walk(document, verbatim).value(node, ())
    except RecursionError:
        raise ConfigProblem(path, [Problem(1, 1, "", "nested too deeply, or within itself")]) from None
    return document


def _syntax(error: MarkedYAMLError, text: str) -> list[Problem]:
    tabs = [
        Problem(number, line.index("\t") + 1, "", "a tab: YAML is indented with spaces")
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(r" *\t[ \t]*[^\s#]", line)
    ]
    if "\\t" in str(error.problem) and tabs:
        return tabs
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    message = f"not YAML: {error.problem or 'unreadable'}"
    if error.context and error.context_mark:
        message += f" ({error.context} that begins in line {error.context_mark.line + 1})"
    if "mapping values are not allowed" in message:
        message += "; a value with `: ` in it needs quotes"
    return [Problem(line, column, "", message.replace("\n", " "))]


def _unreadable(error: Exception, text: str) -> Problem:
    position = getattr(error, "position", None)
    if isinstance(position, int):
        before = text[:position]
        message = f"a control character (0x{ord(text[position]):02x}) that YAML does not allow"
        return Problem(before.count("\n") + 1, position - before.rfind("\n"), "", message)
    if isinstance(error, RecursionError):
        return Problem(1, 1, "", "nested too deeply")
    return Problem(1, 1, "", f"not YAML: {str(error).splitlines()[0]}")


class _Walk:
    """Turns nodes into plain values, noting places and faults."""

    def __init__(self, document: Document, verbatim: frozenset[str]) -> None:
        self.doc = document
        self.verbatim = verbatim
        self.count = 0

    def value(self, node: Node, loc: Loc) -> Any:
        self.count += 1
        place = (node.start_mark.line + 1, node.start_mark.column + 1)
        self.doc.values[loc] = place
        if self.count > _MAX_NODES:
            if self.count == _MAX_NODES + 1:
                self.fault(place, loc, "too large: aliases expand without end")
            return None
        if isinstance(node, MappingNode):
            return self.mapping(node, loc) if self.tag_ok(node, loc, "map") else {}
        if isinstance(node, SequenceNode):
            self.tag_ok(node, loc, "seq")
            return [self.value(item, (*loc, i)) for i, item in enumerate(node.value)]
        return self.scalar(node, loc) if isinstance(node, ScalarNode) else None

    def mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, ScalarNode):
                self.fault(
                    place, loc, "a key must be a word, not a list or a mapping (a {{template}} needs quotes)"
                )
                continue
            key = str(key_node.value)
            here = (*loc, key)
            if key_node.tag == f"{_TAG}merge":
                self.fault(place, loc, "`<<` merges silently: put shared keys in a group")
                continue
            self.doubtful(key_node, here)
            if key in result:
                self.fault(place, here, f"written twice: first in line {self.doc.keys[here][0]}")
                continue
            self.doc.keys[here] = place
            result[key] = self.value(value_node, here)
            if isinstance(value_node, ScalarNode) and not value_node.value and value_node.style is None:
                self.doc.values[here] = place  # nothing stands at the next token, where the parser puts it
        return result

    def scalar(self, node: ScalarNode, loc: Loc) -> Any:
        text = str(node.value)
        self.doc.texts[loc] = text
        plain = node.style is None
        kind = str(node.tag).removeprefix(_TAG)
        if kind not in ("str", "int", "float", "bool", "null", "timestamp"):
            self.tag_ok(node, loc, "")
            return text
        if not plain or self.doubtful(node, loc) or kind in ("str", "timestamp"):
            return text
        if kind == "null":
            return None
        if self.verbatim.intersection(part for part in loc if isinstance(part, str)):
            return text
        return _number(kind, text)

    def doubtful(self, node: ScalarNode, loc: Loc) -> bool:
        """Report a plain scalar that YAML 1.1 and 1.2 read apart; what runs must not depend on the reader."""
        text = str(node.value)
        if node.style is not None:
            return False
        place = (node.start_mark.line + 1, node.start_mark.column + 1)
        for pattern, other in (
            (_BOOL_11, "true or false"),
            (_BASE_60, "a number in base 60"),
            (_OCTAL_11, "an octal number"),
            (_UNDERSCORED, "a number"),
        ):
            if pattern.fullmatch(text):
                self.doc.doubtful.add(dotted(loc))
                self.fault(
                    place, loc, f'{text} without quotes is {other} to some YAML readers: write "{text}"'
                )
                return True
        return False

    def tag_ok(self, node: Node, loc: Loc, kind: str) -> bool:
        tag = str(node.tag)
        if tag == _TAG + kind:
            return True
        place = (node.start_mark.line + 1, node.start_mark.column + 1)
        self.fault(place, loc, f"the tag {tag.replace(_TAG, '!!')} is not used here: remove it")
        return False

    def fault(self, place: Place, loc: Loc, message: str) -> None:
        self.doc.problems.append(Problem(*place, dotted(loc), message))


def _number(kind: str, text: str) -> Any:
    if kind == "bool":
        return text.lower() == "true"
    try:
        return int(text, 0) if kind == "int" else float(text)
    except ValueError:
        return text
