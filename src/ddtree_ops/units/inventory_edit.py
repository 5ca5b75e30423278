"""Adds a host to hosts.yaml and leaves everything else in it as it was, byte for byte."""

from __future__ import annotations

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
