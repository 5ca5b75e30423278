"""Adds a host or sets a key of one in hosts.yaml, and leaves everything else in it as it was, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

from ruamel.yaml import YAML

from ddtree_ops.core.errors import UsageProblem


def add_host(path: Path, name: str) -> None:
    """Write `name: {}` as the last entry of `hosts:` in a hosts.yaml that loads.

    Raises UsageProblem where `hosts:` is not one entry a line.
    """
    text = path.read_text(encoding="utf-8")
    data = YAML().load(text)
    hosts = data["hosts"]
    first = next(iter(hosts), None)
    if first is None or hosts.fa.flow_style():
        raise UsageProblem(
            f"{path}: hosts: is written on one line", next=f"write `{name}: {{}}` under hosts: yourself"
        )
    line, column = hosts.lc.key(first)
    lines = text.splitlines(keepends=True)
    after = [data.lc.key(key)[0] for key in data if data.lc.key(key)[0] > line]
    end = min(after, default=len(lines))
    # Comments and blank lines at the end belong to what follows, unless they are indented like a host.
    while end > line + 1 and not lines[end - 1][: column + 1].strip(" \n"):
        if lines[end - 1].strip():
            break
        end -= 1
    while end > line + 1 and lines[end - 1].startswith(("#", "\n")):
        end -= 1
    if not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    lines.insert(end, f"{' ' * column}{name}: {{}}\n")
    path.write_text("".join(lines), encoding="utf-8")


def set_key(path: Path, host: str, key: str, value: str) -> None:
    """Write `key: "value"` under a host of a hosts.yaml that loads, in place of the value that it has there.

    Raises UsageProblem where the host is not written one key a line.
    """
    text = path.read_text(encoding="utf-8")
    hosts = YAML().load(text)["hosts"]
    lines = text.splitlines(keepends=True)
    entry = hosts[host]
    row, column = hosts.lc.key(host)
    said = f'{key}: "{value}"'
    if hosts.fa.flow_style() or (entry and entry.fa.flow_style()):
        raise UsageProblem(
            f"{path}: {host} is written on one line", next=f"write `{said}` under {host} yourself"
        )
    if not entry:
        # `ct129: {}` becomes `ct129:`, whatever comment follows it
        lines[row] = re.sub(r":([ \t]*)\{[ \t]*\}", ":", lines[row], count=1)
        if not lines[row].endswith("\n"):
            lines[row] += "\n"
        lines.insert(row + 1, f"{' ' * (column + 2)}{said}\n")
    elif key in entry:
        at, begin = entry.lc.key(key)
        # the value up to its end or its comment
        value = r"[^:]*:[ \t]*(\"[^\"]*\"|'[^']*'|[^\s#]+)"
        lines[at] = lines[at][:begin] + re.sub("^" + value, said, lines[at][begin:])
    else:
        at, begin = entry.lc.key(next(iter(entry)))
        lines.insert(at, f"{' ' * begin}{said}\n")
    path.write_text("".join(lines), encoding="utf-8")
