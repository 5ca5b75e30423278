"""The findings of a preflight, and what a rule is for, as a person reads them."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ddtree_ops.core.finding import Finding, Level, grouped

if TYPE_CHECKING:
    from ddtree_ops.core.checks.about import About

_STYLES = {"BLOCK": "bold red", "WARN": "yellow", "OK": "green"}


class Row(NamedTuple):
    """One line of the table; `more`: the lines below it."""

    level: str
    rule: str
    said: str
    more: tuple[str, ...] = ()


def show(name: str, findings: Sequence[Finding], verbose: int = 0) -> None:
    """Print one host's findings to stderr, worst first; on a terminal with colour, wrapped to its width."""
    from ddtree_ops.cli._sinks import on_terminal, say

    lines = rows(findings, verbose)
    if on_terminal():
        _rich(headline(name, findings), lines)
    else:
        say(plain(headline(name, findings), lines))


def headline(name: str, findings: Sequence[Finding]) -> str:
    """The host, and how many findings there are of each level."""
    count = Counter(finding.level for finding in findings)
    waived = sum(finding.waived is not None for finding in findings)
    said = [f"{count[level]} {level}" for level in (Level.BLOCK, Level.WARN, Level.OK) if count[level]]
    return f"{name}: {', '.join(said)}" + (f" ({waived} waived)" if waived else "")


def rows(findings: Sequence[Finding], verbose: int = 0) -> list[Row]:
    """Worst first. Rules that say the same share a line, those that hold are counted, unless verbose."""
    good = [finding for finding in findings if finding.level is Level.OK]
    bad = [finding for finding in findings if finding.level is not Level.OK]
    found = [_row(rules, said) for rules, said in grouped(bad)]
    if verbose:
        found += [Row(finding.level, finding.rule, finding.evidence) for finding in good]
    elif good:
        held = len({finding.rule for finding in good})
        found.append(Row(Level.OK, f"{held} rule{'s' if held > 1 else ''}", "-v lists them"))
    return found


def _row(rules: list[str], said: Finding) -> Row:
    more = [f"waived: {said.waived}"] if said.waived else []
    more += [f"→ {said.remedy}"] if said.remedy else []
    if len(rules) == 1:
        return Row(said.level, rules[0], said.evidence, tuple(more))
    return Row(said.level, f"{len(rules)} rules", f"{said.evidence} ({', '.join(rules)})", tuple(more))


def plain(head: str, lines: Sequence[Row]) -> str:
    """The table for pipes, CI and dumb terminals: no line is broken, so that it can be searched."""
    width = max((len(row.rule) for row in lines), default=0)
    out = [head]
    for row in lines:
        out.append(f"  {row.level:<5} {row.rule:<{width}}  {row.said}")
        out += [f"  {'':<5} {'':<{width}}  {text}" for text in row.more]
    return "\n".join(out)


def _rich(head: str, lines: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ddtree_ops.config.secrets import redact

    plain_text = bool(os.environ.get("NO_COLOR"))  # rich alone would leave it bold
    console = Console(stderr=True, highlight=False, color_system=None if plain_text else "auto")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in lines:
        said = Text(redact("\n".join((row.said, *row.more))))
        table.add_row(Text(f"  {row.level}", style=_STYLES[row.level]), Text(row.rule), said)
    console.print(Text(redact(head)), table, sep="\n")


def explained(rule: str, about: About) -> str:
    """One rule in words."""
    scope = "; not asked with --device cpu" if about.gpu else ""
    waive = (
        f'hosts.yaml, under the host: waive: {{{rule}: "why this may pass"}}'
        if about.waivable
        else "cannot be waived"
    )
    why = textwrap.fill(about.why, 100, initial_indent="  ", subsequent_indent="  ")
    lines = [f"{rule} ({about.area}{scope})", why]
    lines += [f"  reports: {', '.join(about.reports)}"] if about.reports else []
    return "\n".join([*lines, f"  waiver: {waive}"])
