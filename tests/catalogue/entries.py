"""The public failure reports as entries that can be run: the fixtures of one report, and what they must give.

`<FAMILY>.yaml` holds the half that a probe sees before the stop, `<FAMILY>.log.yaml` the half that a log shows; both
have one entry a report, joined by its id. A report that something else catches (the transport, the gate) is covered by
a test of that: `covered: test`, `shown_by: tests/unit/test_x.py::test_y`, `when: before` or `after` the stop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from healthy import HEALTHY_CPU, HEALTHY_H200, WANTED, overlaid
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML, YAMLError

from ddtree_ops.cli.app import run
from ddtree_ops.core.doctor import examine
from ddtree_ops.core.finding import Finding, Level

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FACTS_HALF = ("facts", "rule", "level", "names", "twin")
LOG_HALF = ("log", "verdict", "reason", "hint_names", "log_twin")
#: What a log file may repeat of the entry that it belongs to; the other file's word counts.
SHARED = ("id", "paraphrase", "covered", "why_not")
NEEDS = {"facts": FACTS_HALF, "log": LOG_HALF, "both": FACTS_HALF + LOG_HALF, "test": ("shown_by", "when")}


class Problems(ValueError):
    """What is wrong with the catalogue itself, each with its file and id."""


class Entry(BaseModel):
    """One report. facts: laid over the healthy document of `on`. wanted: fields of Wanted, as `mode`."""

    model_config = ConfigDict(extra="forbid")
    id: str = Field(pattern=r"^F\d{3}$")
    paraphrase: str = Field(min_length=20)
    covered: Literal["facts", "log", "both", "test", "no"]
    why_not: str | None = Field(default=None, min_length=5)
    on: Literal["h200", "cpu"] = "h200"
    wanted: dict[str, Any] = {}
    facts: dict[str, Any] | None = None
    rule: str | None = None
    level: Literal["BLOCK", "WARN"] | None = None
    names: list[str] | None = Field(default=None, min_length=1)
    twin: dict[str, Any] | None = None
    twin_wanted: dict[str, Any] | None = None
    log: str | None = None
    verdict: Literal["FAIL", "WAIT", "WARN", "OK"] | None = None
    reason: str | None = None
    hint_names: list[str] | None = Field(default=None, min_length=1)
    log_twin: str | None = None
    shown_by: str | None = Field(default=None, pattern=r"^tests/\S+\.py::\w+$")
    when: Literal["before", "after"] | None = None

    @property
    def family(self) -> str:
        return reports()[self.id][0]

    @property
    def possible(self) -> str:
        """What a probe can do at best, as the collection says it: block, warn, or -."""
        return reports()[self.id][1]


@functools.cache
def reports() -> dict[str, tuple[str, str]]:
    """{id: (family, what a probe before the start can do)} of all the reports, in order."""
    found: dict[str, tuple[str, str]] = {}
    family = ""
    for line in (HERE / "reports.txt").read_text().splitlines():
        words = line.split()
        if len(words) == 1:
            family = words[0]
        elif len(words) == 2 and words[0] != "#":
            found[words[0]] = (family, words[1])
    return found


def load(directory: Path = HERE) -> list[Entry]:
    """All entries, in the order of reports.txt. Raises Problems with everything that is wrong."""
    problems: list[str] = []
    raw: dict[str, dict[str, Any]] = {}
    for path in sorted(
        directory.glob("*.yaml"), key=lambda path: (path.name.endswith(".log.yaml"), path.name)
    ):
        family = path.name.split(".")[0]
        if family in families():
            _collect(path, family, raw, problems)
    entries = [entry for key, item in raw.items() if (entry := _entry(key, item, problems)) is not None]
    problems += [
        f"{family}.yaml: {key} is missing" for key, (family, _) in reports().items() if key not in raw
    ]
    if problems:
        raise Problems("\n".join(problems))
    order = list(reports())
    return sorted(entries, key=lambda entry: order.index(entry.id))


def families() -> list[str]:
    return list(dict.fromkeys(family for family, _ in reports().values()))


def _collect(path: Path, family: str, raw: dict[str, dict[str, Any]], problems: list[str]) -> None:
    """Add one file's entries to raw, those of a log file to the entry of the same id."""
    try:
        items = YAML(typ="safe").load(path.read_text(encoding="utf-8")) or []
    except YAMLError as error:
        problems.append(f"{path.name}: {error}")
        return
    if not isinstance(items, list):
        problems.append(f"{path.name}: must be a list of entries")
        return
    seen: set[str] = set()
    for item in items:
        key = item.get("id") if isinstance(item, dict) else None
        if reports().get(str(key), ("",))[0] != family:
            problems.append(f"{path.name}: {key}: no report of family {family} in reports.txt")
        elif key in seen:
            problems.append(f"{path.name}: {key} is given twice")
        else:
            seen.add(key)
            _join(path, item, raw.setdefault(key, {}), problems)


def _join(path: Path, item: dict[str, Any], entry: dict[str, Any], problems: list[str]) -> None:
    for name, value in item.items():
        if name not in entry:
            entry[name] = value
        elif name not in SHARED:
            problems.append(f"{path.name}: {item['id']}: {name} is given in both files")


def _entry(key: str, raw: dict[str, Any], problems: list[str]) -> Entry | None:
    where = f"{reports()[key][0]}.yaml: {key}"
    # What is there counts: a log half may come for a report whose other file says `facts` or `no`.
    if "log" in raw and raw.get("covered") in (None, "facts", "no"):
        raw = {**raw, "covered": "both" if "facts" in raw else "log"}
    try:
        entry = Entry.model_validate(raw)
    except ValidationError as error:
        for fault in error.errors():
            problems.append(f"{where}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}")
        return None
    given = entry.model_dump(exclude_none=True)
    halves = [half for half in (FACTS_HALF, LOG_HALF) if any(name in given for name in half)]
    for needed in [*halves, *([NEEDS[entry.covered]] if entry.covered != "no" else [])]:
        for name in needed:
            text = f"{where}: {name} is missing"
            if name not in given and text not in problems:
                problems.append(text)
    if entry.covered == "no" and entry.why_not is None:
        problems.append(f"{where}: covered: no, without why_not")
    if entry.shown_by and not _exists(entry.shown_by):
        problems.append(f"{where}: {entry.shown_by} does not exist")
    return entry


def _exists(test: str) -> bool:
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and f"def {name}(" in (ROOT / path).read_text()


def findings(
    facts: Mapping[str, Any], on: str = "h200", wanted: Mapping[str, Any] | None = None
) -> list[Finding]:
    """What the preflight says of a healthy document with these facts laid over it."""
    base = HEALTHY_H200 if on == "h200" else HEALTHY_CPU
    return examine(overlaid(base, facts), dataclasses.replace(WANTED, **(wanted or {})))


def judge_facts(entry: Entry) -> list[str]:
    """What is wrong with the preflight's answer to this entry and to its twin; [] where it is right."""
    if entry.facts is None or entry.twin is None:
        return []
    seen = [found for found in findings(entry.facts, entry.on, entry.wanted) if found.rule == entry.rule]
    found = [finding for finding in seen if finding.level == entry.level]
    if not found:
        return [f"no {entry.level} of {entry.rule}: {_said(seen)}"]
    text = " ".join(f"{finding.evidence} {finding.remedy}" for finding in found).lower()
    wrong = [
        f"{name!r} is not named in: {_said(found)}" for name in entry.names or () if name.lower() not in text
    ]
    wanted = entry.wanted if entry.twin_wanted is None else entry.twin_wanted
    near = [found for found in findings(entry.twin, entry.on, wanted) if found.rule == entry.rule]
    bad = [finding for finding in near if finding.level is not Level.OK]
    if bad:
        wrong.append(f"the twin is not OK: {_said(bad)}")
    if not near and any(found.rule == entry.rule for found in findings({}, entry.on, wanted)):
        wrong.append(f"{entry.rule} says nothing of the twin, as if it did not apply")
    return wrong


def judge_log(entry: Entry) -> list[str]:
    """The same for the log half, as `ddtree-ops diagnose --json` answers it."""
    if entry.log is None or entry.log_twin is None:
        return []
    said = diagnose(entry.log)
    wrong = []
    if said.get("verdict") != entry.verdict:
        wrong.append(f"verdict {said.get('verdict')}, not {entry.verdict}")
    if entry.reason != str(said.get("reason")).partition(" ")[2]:
        wrong.append(f"reason {said.get('reason')}, not {entry.reason}")
    hint = str(said.get("hint")).lower()
    missed = [name for name in entry.hint_names or () if name.lower() not in hint]
    wrong += [f"{name!r} is not named in the hint: {hint}" for name in missed]
    if not said.get("line"):
        wrong.append("no line is quoted")
    near = diagnose(entry.log_twin)
    if near.get("verdict") not in ("OK", "WAIT"):
        wrong.append(f"the twin is {near.get('verdict')} ({near.get('reason')}: {near.get('line')})")
    return wrong


@functools.cache
def diagnose(text: str) -> dict[str, Any]:
    """The document that `ddtree-ops diagnose --json` prints for this log."""
    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run(["diagnose", "--json", file.name])
    said = json.loads(out.getvalue() or "{}")
    if "verdict" not in said:
        raise RuntimeError(f"diagnose gave no verdict: {err.getvalue()[:300]}")
    return dict(said)


class HealthyLog(BaseModel):
    """A real log of a start that went well. seen: on what it was seen."""

    model_config = ConfigDict(extra="forbid")
    file: str
    seen: str = Field(min_length=10)


def healthy_logs(directory: Path = HERE) -> list[HealthyLog]:
    """The logs of healthy_logs.yaml. Raises ValidationError."""
    items = YAML(typ="safe").load((directory / "healthy_logs.yaml").read_text(encoding="utf-8"))
    return [HealthyLog.model_validate(item) for item in items]


def log_alarm(log: HealthyLog) -> str | None:
    """What `diagnose` holds against a healthy start; None where that is nothing."""
    said = diagnose((ROOT / log.file).read_text(encoding="utf-8", errors="replace"))
    if said.get("verdict") != "FAIL":
        return None
    return f"{log.file}: FAIL {said.get('reason')}: {said.get('line')}"


def _said(seen: Sequence[Finding]) -> str:
    return "; ".join(f"{f.level} {f.evidence} -> {f.remedy}" for f in seen) or "the rule said nothing"


class Variation(BaseModel):
    """A healthy host that is not like the others. varies: in words, what is different about it."""

    model_config = ConfigDict(extra="forbid")
    varies: str = Field(min_length=10)
    on: Literal["h200", "cpu"] = "h200"
    wanted: dict[str, Any] = {}
    facts: dict[str, Any]


def variations(directory: Path = HERE) -> Iterator[Variation]:
    """The healthy fact sets of variations.yaml and variations_<area>.yaml. Raises ValidationError."""
    for path in sorted(directory.glob("variations*.yaml")):
        for item in YAML(typ="safe").load(path.read_text(encoding="utf-8")):
            yield Variation.model_validate(item)
