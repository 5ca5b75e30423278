"""What a log that somebody pasted means: the signatures and the scanner of the watch, without a host or a phase.

Such a log may begin anywhere and mix sources (journal, kernel, pip, ssh), so the signatures of all phases are looked
for; what a phase would have told is read from the log itself: whether an engine speaks, whether it came up, whether
it began again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ddtree_ops.core.acceptance import Acceptance
from ddtree_ops.core.log_text import LONGEST, bare, clean, plain
from ddtree_ops.core.named import told
from ddtree_ops.core.needles import Gate
from ddtree_ops.core.scanner import Evidence, Scanner
from ddtree_ops.core.signatures import PHASES, Signature

_ANY = "pasted"
#: Counted over the whole log instead of believed at once: a wedged engine.
_STUCK = "S80"
#: Looked for only where nothing else is known of a line, and before its level is cut off with what precedes it.
_LEVEL = "Y05"
#: A line that no rule knows: what it says is all that is known.
_WORDLESS, _SAID = ("Y02", "Y03", "Y04", "Y05", "X02", "V64"), 160
_OUTSIDE_ENGINE = frozenset({"transport"})

_FRAME = re.compile(r'\s*File ".*", line \d+')
_WRAPPED = re.compile(r'^\{.*"(?:log|MESSAGE|message|msg)" ?:')
_MARKED = re.compile(r"^(\*\*|`)(?=[^\s*`])(.*?)\1?$")  # a line set in bold or as code
_LISTED = re.compile(
    r"^ ?(?:[-*•]|\d+[.)]) (?=(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)\b|[Ee]rror\b)"
)
_DOCUMENTS = re.compile(
    r"\s*(?:# +|NOTE: |--[a-z][\w-]+(?:[ ,=]|$))"
)  # a comment or a help text, and what they warn of
_STATISTICS = re.compile(r"(?:Running: \d+ reqs|Decode batch)")
_ENGINE = re.compile(
    r"server_args=|\bsglang\b.*(?:launch_server|serve\b)|Load weight begin|Uvicorn running on|ServerArgs\("
    r"|vLLM API server version|non-default args: |Initializing an? (?:V1 )?LLM engine|Automatically detected platform"
    r"|\(EngineCore\w* pid=|Application startup complete"
)
#: What other servers than SGLang say when they serve; SGLang says it before its warm-up, and "ready to roll" after.
#: In quotes it is only spoken of.
_SERVES = re.compile(
    r"(?<![`'\"])(?:Application startup complete|Uvicorn running on|server is listening on \S+ - starting the main loop"
    r"|llama runner started in)"
)
_SGLANG = re.compile(r"server_args=|\bsglang\b|Load weight begin|\b(?:TP|DP|EP|PP)\d+\] ")
#: The first line of a start of another server than SGLang.
_BEGINS = re.compile(r"vLLM API server version \S+")
#: journalctl(1) of a unit that never ran, or whose name is mistyped.
_EMPTY = "-- No entries --"
_DONE = re.compile(r"\bends?\b|\b100%|\bInit COMPLETE\b")
_STOPPING = re.compile(r"\bStopping \S+")
_NOTHING_YET = ("refused",)
#: Its last count is not the end of its phase: what was read is still converted.
_SHARDS = "P01"
#: A health check that says no is what follows from any other wait, and from its own first words.
_REFUSES = "health-busy"
_ANSWERED = re.compile(r"\" 200\b|HTTP/[\d.]+ 200\b|\b200 OK\b|\bis (?:up|ready|healthy)\b")


@dataclass(frozen=True)
class Diagnosis:
    """verdict: FAIL (it cannot work so), WAIT (nothing is wrong yet), WARN (it works, look at this), OK (no line that
    means trouble). reason: `ID KIND` of the signature. line: the first fatal line (or the one to wait for)."""

    verdict: str
    hint: str
    reason: str = ""
    line: str = ""
    context: tuple[str, ...] = ()
    phase: str = ""
    lines: int = 0

    def to_json(self) -> dict[str, Any]:
        """As `diagnose --json` prints it, without schema_version."""
        return {
            "verdict": self.verdict,
            "reason": self.reason or None,
            "line": self.line or None,
            "hint": self.hint,
            "context": list(self.context),
            "phase": self.phase or None,
            "lines": self.lines,
        }


@dataclass(frozen=True)
class _Seen:
    """A line that a signature knows, kept for the verdict."""

    signature: Signature
    line: str
    context: tuple[str, ...]


@dataclass
class _Run:
    """One start within the log: a pasted journal may hold several."""

    scanner: Scanner
    ready: bool = False
    best_phase: str = ""
    best_line: str = ""
    excused: set[str] = field(default_factory=set)


class Reader:
    """Takes a log line by line, of any size, and says what it means. One Reader reads one log."""

    def __init__(self, signatures: list[Signature]) -> None:
        self._role = {signature.id: signature.role for signature in signatures}
        self._by_id = {signature.id: signature for signature in signatures}
        apart = (_STUCK, _LEVEL)
        known = [s for s in signatures if s.role not in ("passed", "entered") and s.id not in apart]
        self._marks = [s for s in signatures if s.role in ("passed", "entered")]
        self._gate = Gate([_anywhere(s) for s in known])
        self._engine_gate = Gate([_anywhere(s) for s in known if s.phases != _OUTSIDE_ENGINE])
        self._engine = self._sglang = False
        self._run = _Run(Scanner([]))
        self._failed_before: Diagnosis | None = None
        self._phase = ""
        self._indent: str | None = None
        self._count = 0
        self._waits: _Seen | None = None
        self._moves: _Seen | None = None
        self._note: _Seen | None = None
        self._level: _Seen | None = None
        self._stuck: _Seen | None = None
        self._acceptance = Acceptance()
        self._stopping = self._answered = False

    def feed(self, raw: str) -> None:
        """Take one line (or several parts of one, as a progress bar writes them)."""
        for part in re.split(r"[\r\n]+", raw):
            self._line(self._unwrapped(part)[:LONGEST])

    def result(self) -> Diagnosis:
        """What the lines so far mean."""
        return replace(self._verdict(), lines=self._count)

    # --- one line ---------------------------------------------------------------------------------------------

    def _unwrapped(self, part: str) -> str:
        """The line without what the paste put around it: a JSON record, a quote mark, an indent."""
        part = plain(part)
        if part.startswith("{") and _WRAPPED.match(part):
            try:
                record = json.loads(part)
            except (ValueError, RecursionError):
                return part
            for key in ("log", "MESSAGE", "message", "msg"):
                if isinstance(record.get(key), str):
                    return str(record[key]).rstrip("\n")
            return part
        if part.startswith("> "):
            part = part[2:]
        part = _MARKED.sub(r"\2", _LISTED.sub("", part))
        if part.strip():
            # Two blanks before a frame are its own; a line with fewer shows that the paste is indented less.
            own = part[: len(part) - len(part.lstrip()) - (2 if _FRAME.match(part) else 0)]
            if self._indent is None or len(own) < len(self._indent):
                self._indent = own
        return part[len(self._indent) :] if self._indent and part.startswith(self._indent) else part

    def _line(self, line: str) -> None:
        self._count += line.strip() not in ("", _EMPTY)
        text = bare(line)
        if _DOCUMENTS.match(text):
            return
        if not self._run.scanner.in_traceback and _FRAME.match(text):
            self._run.scanner.feed("Traceback (most recent call last):", _ANY)  # the paste began below it
        self._follow_start(text)
        scanner = self._run.scanner
        scanner.signatures = self._gate.candidates(text + scanner.beside)
        signature = scanner.feed(line, _ANY)
        if scanner.best is not None and scanner.best.line != self._run.best_line:
            self._run.best_line, self._run.best_phase = scanner.best.line, self._phase
        if signature is not None:
            self._keep(signature, text, line)
        elif self._level is None and not scanner.in_traceback and _LEVEL in self._by_id:
            level = self._by_id[_LEVEL]
            benign = any(s.role == "benign" and s.pattern.search(text) for s in scanner.signatures)
            if not benign and level.pattern.search(line):
                self._level = _Seen(level, clean(line), tuple(scanner.recent()))
        self._statistics(text)
        self._stopping = self._stopping or _STOPPING.search(text) is not None
        self._answered = self._answered or _ANSWERED.search(text) is not None

    def _follow_start(self, text: str) -> None:
        """The phase, as far as milestones tell it; a new start; being ready."""
        if not self._engine and _ENGINE.search(text):
            self._engine, self._gate = True, self._engine_gate
        self._sglang = self._sglang or _SGLANG.search(text) is not None
        if not self._sglang and _BEGINS.search(text):
            self._begin_again()
        for mark in self._marks:
            if not mark.pattern.search(text):
                continue
            target = next(phase for phase in PHASES if phase in mark.phases)
            if mark.id == "M01":
                self._begin_again()
            if mark.role == "entered":
                self._phase = target
                continue
            self._phase = PHASES[min(PHASES.index(target) + 1, len(PHASES) - 1)]
            self._moves = None
            if target == "serve":
                self._came_up()
        if not self._sglang and _SERVES.search(text):
            self._came_up()

    def _begin_again(self) -> None:
        """The arguments are logged once a start: a second time is the next start, and the first failure counts."""
        found = self._run.scanner.best
        if not self._run.ready and (found is None or (found.rank < 4 and not found.kills)):
            return  # only warnings so far: this start's own, from before it told its arguments
        cause = self._cause()
        if cause is not None and self._failed_before is None and cause.verdict == "FAIL":
            self._failed_before = cause
        self._run = _Run(Scanner([]))
        self._waits = self._moves = self._stuck = None

    def _came_up(self) -> None:
        """A start that got ready has survived what was only suspicious before."""
        run = self._run
        run.ready, self._waits, self._moves = True, None, None
        best = run.scanner.best
        if best is not None and not self._is_hard(best):
            run.scanner = Scanner([])

    def _is_hard(self, best: Evidence) -> bool:
        return self._role.get(best.id, "") in ("root", "fatal", "effect") or (best.kills and not best.known)

    def _keep(self, signature: Signature, text: str, line: str) -> None:
        role = self._role[signature.id]
        if role not in ("wait", "note"):
            return
        seen = _Seen(signature, clean(line, signature.pattern), tuple(self._run.scanner.recent()))
        best = self._run.scanner.best
        if best is not None and best.line == seen.line and not best.known:
            self._run.excused.add(seen.line)  # the exception of a state that passes by itself
        if role == "note":
            self._note = self._note or seen
            return
        counted = signature.pattern.search(text)
        groups = counted.groupdict() if counted else {}
        if "done" in groups:
            over = groups["done"] == groups["all"] and signature.id != _SHARDS
            self._moves = None if over else seen
        elif signature.reason == "start-up":
            self._moves = None if _DONE.search(text) else seen
        elif self._waits is None or signature.reason != _REFUSES:
            self._waits = seen

    def _statistics(self, text: str) -> None:
        self._acceptance.take(text)
        if not _STATISTICS.search(text):
            return
        signature = self._by_id[_STUCK]
        stuck = signature.pattern.search(text) is not None
        self._stuck = _Seen(signature, clean(text), tuple(self._run.scanner.recent())) if stuck else None

    # --- the verdict ------------------------------------------------------------------------------------------

    def _verdict(self) -> Diagnosis:
        if self._failed_before is not None:
            if not self._run.ready:
                return self._failed_before
            again = self._cause()
            if again is None:
                hint = f"an earlier start failed, the last one came up: {self._failed_before.hint}"
                return replace(self._failed_before, verdict="WARN", hint=hint)
        cause = self._cause()
        if cause is not None and cause.verdict == "FAIL":
            return cause
        if self._stuck is not None:
            return self._told("FAIL", self._stuck)
        flat = self._flat()
        if flat is not None and flat.verdict == "FAIL":
            return flat
        if self._waits is not None:
            return self._told("WAIT", self._waits)
        if cause is not None and cause.verdict == "WAIT":
            return cause
        if self._note is not None:
            return self._told("WARN", self._note)
        if cause is not None or flat is not None:
            return cause or flat or Diagnosis("OK", "")
        if self._moves is not None:
            return self._told("WAIT", self._moves)
        if self._level is not None and not self._run.ready:
            return self._told("WARN", self._level)
        best = self._run.scanner.best
        if best is not None and best.reason in _NOTHING_YET and not (self._run.ready or self._answered):
            return self._of(best, "WAIT")
        return self._healthy()

    def _cause(self) -> Diagnosis | None:
        """The best cause of this run as a verdict; None where it is none."""
        run, best = self._run, self._run.scanner.best
        if best is None or best.line in run.excused or best.reason in _NOTHING_YET:
            return None
        role = self._role.get(best.id, "")
        if best.known and not best.kills and role in ("root", "fatal", "explains"):
            return None if best.rank < 4 else self._of(best, "WARN" if run.ready else "FAIL")
        if best.reason == "terminated":
            # Stopped from outside is no fault of its own: after ready it is a stop, before it was only too early;
            # where systemd stops it and no line is of a start, the log is that of a stop.
            return None if run.ready or (self._stopping and not self._engine) else self._of(best, "WAIT")
        if role == "consequence":
            asked = best.reason == "exited-0" and (self._stopping or run.ready or best.id == "K15")
            return None if asked or self._waits is not None else self._of(best, "FAIL")
        if role == "explains" and run.ready and not best.deadly:
            return self._of(best, "WARN")
        return self._of(best, "WARN" if run.ready and not best.kills else "FAIL")

    def _flat(self) -> Diagnosis | None:
        """Speculation that accepts nothing, over enough steps."""
        flat = self._acceptance.flat()
        if flat is None:
            return None
        seen = _Seen(self._by_id[flat.signature], flat.line, tuple(self._run.scanner.recent()))
        return self._told("FAIL" if flat.sure else "WARN", seen)

    def _healthy(self) -> Diagnosis:
        if self._count == 0:
            return Diagnosis("OK", "the log is empty, nothing to read: is it the right file, unit and time?")
        if self._run.ready:
            best = self._run.scanner.best
            ended = best is not None and best.reason == "terminated"
            return Diagnosis(
                "OK", "it came up" + (", and was stopped later" if ended else ""), phase=self._phase
            )
        unfinished = "; the engine has not said that it is ready" if self._engine else ""
        return Diagnosis("OK", "no line of this log means trouble" + unfinished, phase=self._phase)

    def _of(self, best: Evidence, verdict: str) -> Diagnosis:
        reason = f"{best.id or 'Y02'} {best.reason}"
        hint = told(self._with_words(best.id, best.hint, best.line), best.line)
        return Diagnosis(verdict, hint, reason, best.line, best.context, self._run.best_phase)

    def _told(self, verdict: str, seen: _Seen) -> Diagnosis:
        reason = f"{seen.signature.id} {seen.signature.reason}"
        hint = told(self._with_words(seen.signature.id, seen.signature.hint, seen.line), seen.line)
        return Diagnosis(verdict, hint, reason, seen.line, seen.context, self._phase)

    def _with_words(self, known: str, hint: str, line: str) -> str:
        """A hint that names no cause of its own repeats the line's words, which do."""
        own = known in _WORDLESS and hint == self._by_id[known].hint
        return f"{hint}: {line[:_SAID].rstrip()}" if own else hint


def _anywhere(signature: Signature) -> Signature:
    """The signature for a log of unknown phase; what only explains a death counts as much as what announces one."""
    fatal = signature.role == "explains" and not signature.general
    return replace(signature, phases=frozenset({_ANY}), role="fatal" if fatal else signature.role)


def diagnose(lines: Iterable[str], signatures: list[Signature]) -> Diagnosis:
    """What these lines mean."""
    reader = Reader(signatures)
    for line in lines:
        reader.feed(line)
    return reader.result()
