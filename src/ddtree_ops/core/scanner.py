"""Finds the first cause in a log, line by line, whatever follows from it.

Standard library only, no I/O: built verbatim into the host agent.
"""

import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Deque, Dict, List, Optional, Tuple

from .log_record import LOADING, NAMED, THROWN, begins, is_low, is_quiet
from .log_text import bare, clean
from .raised import AT, BESIDE, Place, has_no_words, says_little
from .signatures import Signature, match

#: How good a cause a line is. A better one replaces a worse one; among equals the first stays.
_RANK = {"root": 6, "fatal": 5, "explains": 4, "effect": 2, "consequence": 1}
_DEADLY = 5  # the exception of a traceback that a process died of
_TRACE = 3  # the exception of a traceback that no signature knows
_TAKES_BACK = ("fatal", "root", "explains")  # of these a warning, or a word such as "ignored", leaves little
_KILLS = ("root", "fatal", "effect", "consequence")

_HEADER = "Traceback (most recent call last)"
_EXCEPTION = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout|Expired|Failure|Failed|OutOfResources|Empty|Again)\w*"
    r"(?:: |:?$)|^(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*: \S"  # in a traceback what ends it, whatever its name
)
_CHAINED = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_INVALID = re.compile(r"\b\d+ validation errors? for \w+")  # pydantic: the lines below it say what is wrong
_IGNORED = ("Exception ignored in", "--- Logging error ---")  # Python goes on after these tracebacks
_CHILD = re.compile(r"^Process \w*Process-\d[\d:]*:$")
#: What vLLM's processes log in front of the traceback that they end with.
_ENDED = re.compile(r"\w (?:failed to start|hit an exception|encountered a fatal error)\.$")
_SAID = "\x00"  # stands for the known words of a line
_SOFT = re.compile(
    r"(?i)\bignor\w+|\bif you (?:get|see|encounter)\b"
    r"|\bfall(?:ing|s)? ?back\b|\bretrying\b|\bwarning\b|\w+Warning:|\bskipp\w+"
    r"|\boverriding\b|\bdefaulting\b|\bnon-fatal\b|\bwill (?:use the )?default\b"
    rf"|\b(?:to avoid|to prevent|in case of|if (?:you|it) (?:hit|see|get)s?)\b\W{{0,4}}{_SAID}"
)
_OWN_WARNING = re.compile(r"(?<!\w)[Ww]arning: ")  # in an exception's own words it takes nothing back
_THROWN_HINT = (
    "native code threw an exception that nobody caught, and the process is dead: its text says why; "
    "libraries of two builds, a driver that does not fit, or the GPU"
)
_IN_SOURCE = re.compile(r": at \d+:\d+:$")
_CRASH, _LOST = "crash", "peer-lost"
_EVENT = re.compile(
    r"(?:^|\s)Warning\s{2,}[A-Z]\w+\s"
)  # kubernetes' type of an event that tells of a failure
_BEFORE, _AFTER = 6, 4
_MESSAGE = 60  # lines that the text of one exception may go on for (a compiler's output)


@dataclass(frozen=True)
class Evidence:
    """A line that may be the cause of a failure. `kills`: the start is lost even while the process lives."""

    line: str
    context: Tuple[str, ...]
    rank: int
    kills: bool
    phase: str
    reason: str = "exception"
    hint: str = "an exception in the engine itself: the lines around it say where"
    host: bool = False
    known: bool = False
    id: str = ""
    weak: bool = False  # an exception without words: one that follows from it in its chain says more
    deadly: bool = False  # the exception of a traceback that a process died of
    general: bool = True
    symptom: bool = False


def _is_soft(signature: Signature, line: str, low: bool) -> bool:
    """Whether the line takes back what it says (ignored, falling back, a warning), by its level (`low`) or outside the
    known words."""
    if signature.firm or signature.role not in _TAKES_BACK:
        return False
    if _EXCEPTION.match(line):
        line = _OWN_WARNING.sub(" ", line)
    return (
        low or _SOFT.search(signature.pattern.sub(f" {_SAID} ", _EVENT.sub(" ", line), count=1)) is not None
    )


def _names(signature: Signature) -> Dict[str, Any]:
    return {
        "id": signature.id,
        "reason": signature.reason,
        "hint": signature.hint,
        "host": signature.host,
    }


@dataclass
class Scanner:
    """Reads a log line by line and keeps the best cause seen so far in `best`.

    The first line of the strongest kind wins: an undefined symbol, then a known fatal line or the exception of a
    process that died of it, then any other exception, then effects (a child crashed, a time-out elsewhere), then
    consequences. In a chain of exceptions Python prints the innermost first, so first is innermost. A general line
    gives way to an exact one in the text of the same exception, a symptom to the failed import that it comes from.
    """

    signatures: List[Signature]
    best: Optional[Evidence] = None
    fatal: bool = False
    _open: int = 0
    _muted: bool = False
    _deadly: bool = False
    _echo: Optional[Signature] = None
    _chained: bool = False
    _linked: bool = False
    _caret: bool = False
    _announced: bool = False
    _details: int = 0
    _place: Place = field(default_factory=Place)
    _recent: Deque[str] = field(default_factory=lambda: deque(maxlen=_BEFORE))
    _after: int = 0
    _message: int = 0
    _low: bool = False
    _suspect: Optional[Evidence] = None

    def feed(self, raw: str, phase: str) -> Optional[Signature]:
        """Take one line in `phase`; return the signature that it matched, if any."""
        whole = bare(raw)
        signature = match(whole, phase, self.signatures)
        line = clean(raw, signature.pattern if signature is not None else None)
        self._follow(line)
        self._message = 0 if begins(whole) else max(self._message - 1, 0)
        self._low = is_low(raw)
        self._go_on(line)
        found = self._judge(whole, line, signature, phase, is_quiet(raw))
        if found is not None:
            self._weigh(found)
        if line:
            self._recent.append(line)
            self._announced = signature is not None and signature.role in _KILLS
        return signature

    @property
    def beside(self) -> str:
        """What a traceback has come to, as `_placed` adds it to the exception's words; "" outside one."""
        return self._place.placed("") if self._open and self._place.source else ""

    @property
    def in_traceback(self) -> bool:
        """Whether the lines now are frames of a traceback whose exception has not come yet."""
        return self._open > 0

    def recent(self) -> List[str]:
        """The last lines, for a failure that left no cause in the log."""
        return list(self._recent)

    def _judge(
        self, whole: str, line: str, signature: Optional[Signature], phase: str, quiet: bool
    ) -> Optional[Evidence]:
        if _CHAINED.match(whole):
            self._chained = True
            return None
        if _HEADER in whole:
            self._begin(whole, signature, quiet)
            return self._evidence(line, signature, phase) if signature else None
        if THROWN.match(whole):
            return self._thrown(line, signature, phase)
        if self._details and "[type=" in whole:
            return self._detail(whole, line, phase)
        self._details = max(self._details - 1, 0)
        raised = self._open > 0 and self._is_exception(whole)
        if self._open and not raised and self._place.takes(whole):
            return None  # frames and source text of a traceback say nothing by themselves
        if raised:
            self._open -= 1
            self._details = 8 if _INVALID.search(whole) else 0
            if self._muted:
                self._suspect = self._suspect or self._failed_load(line, signature, phase)
                return None
            if (
                self._echo is not None
            ):  # the failing warm-up's own exception is as much a consequence as its header
                return self._evidence(line, self._echo, phase)
            return self._raised(line, signature, phase)
        if _EXCEPTION.match(whole) and _INVALID.search(whole):
            self._details = 8  # the paste began at the exception
        return self._evidence(line, signature, phase) if signature else None

    def _is_exception(self, whole: str) -> bool:
        """By its name, or by its place: the line after the frames, whatever it is called."""
        return bool(_EXCEPTION.match(whole) or (self._place.has_frames and NAMED.match(whole)))

    def _begin(self, whole: str, signature: Optional[Signature], quiet: bool) -> None:
        self._open = min(self._open + 1, 16)
        self._linked = self._chained
        self._place.forget()
        if self._chained:  # one chain is one failure: it keeps the kind of its first header
            self._chained = False
            return
        announced = not whole.startswith(_HEADER)
        known = (signature is not None and signature.role in _KILLS) or self._announced
        self._echo = signature if signature is not None and signature.role == "consequence" else None
        ended = bool(self._recent) and _ENDED.search(self._recent[-1]) is not None
        self._deadly = known or ended or any(_CHILD.match(line) for line in self._recent)
        said_before = self._recent[-1] if self._recent and not announced else ""
        self._muted = quiet or (
            not known and ((announced and self._is_benign(whole)) or said_before.startswith(_IGNORED))
        )

    def _is_benign(self, whole: str) -> bool:
        return any(s.role == "benign" and s.pattern.search(whole) for s in self.signatures)

    def _raised(self, line: str, signature: Optional[Signature], phase: str) -> Evidence:
        weak = says_little(line)
        unnamed = signature is None or signature.reason == "exception"
        if self._place.source and (unnamed or (signature is not None and signature.general)):
            signature = self._placed(line, phase, unnamed) or signature
        if signature is not None and signature.role in _RANK:
            known = self._evidence(line, signature, phase, raised=True)
            if known is not None:
                deadly = self._deadly and signature.role != "consequence"
                rank = max(known.rank, _DEADLY) if deadly else known.rank
                unknown = signature.reason == "exception"
                hint = self._place.hint(line) if unknown else known.hint
                kills = known.kills or self._deadly
                return replace(known, rank=rank, kills=kills, hint=hint, weak=weak and unknown, deadly=deadly)
        rank, context = _DEADLY if self._deadly else _TRACE, self._context(line)
        hint, deadly = self._place.hint(line), self._deadly
        found = Evidence(line, context, rank, deadly, phase, hint=hint, weak=weak, deadly=deadly)
        if deadly and signature is not None and signature.role == "wait" and signature.host:
            # A state of the host that may pass, and this process died of it.
            return replace(found, known=True, **_names(signature))
        return found

    def _thrown(self, line: str, signature: Optional[Signature], phase: str) -> Evidence:
        """The text of a C++ exception that ended its process: whatever it speaks of, the process is dead."""
        found = Evidence(line, self._context(line), _TRACE, True, phase, "crash", _THROWN_HINT, known=True)
        if signature is None:
            return found
        known = self._evidence(line, signature, phase)
        told = replace(found, **_names(signature))
        return replace(known, kills=True) if known is not None else told

    def _failed_load(self, line: str, signature: Optional[Signature], phase: str) -> Optional[Evidence]:
        """The line as the possible cause of what will be missing later."""
        known = self._evidence(line, signature, phase) if signature is not None else None
        return known if known is not None and LOADING.search(line) else None

    def _placed(self, line: str, phase: str, unnamed: bool) -> Optional[Signature]:
        """What an exception means together with the source that raised it, where its own words say too little."""
        own, placed, little = self._place.told(line), self._place.placed(line), has_no_words(line)
        for signature in self.signatures:
            if (
                signature.role not in _RANK
                or phase not in signature.phases
                or signature.reason == "exception"
            ):
                continue
            words = signature.pattern.pattern
            if AT in words and signature.pattern.search(placed):
                return signature
            if unnamed and (little or BESIDE in words) and signature.pattern.search(own):
                return signature
        return None

    def _detail(self, whole: str, line: str, phase: str) -> Optional[Evidence]:
        """The line under "1 validation error for X" that says what is not valid: it is the exception's own text."""
        self._details = 0
        said = whole.strip().partition(" [type=")[0]
        said = said[len("Value error, ") :] if said.startswith("Value error, ") else said
        found = self._raised(f"ValidationError: {said}", match(said, phase, self.signatures), phase)
        found = replace(found, line=line, context=self._context(line))
        if self.best is not None and _INVALID.search(self.best.line):
            found = replace(found, rank=max(found.rank, self.best.rank), kills=self.best.kills)
        return found

    def _evidence(
        self, line: str, signature: Signature, phase: str, raised: bool = False
    ) -> Optional[Evidence]:
        if signature.role not in _RANK:
            return None
        soft = not raised and not self._open and _is_soft(signature, line, self._low)
        found = Evidence(
            line=line,
            context=self._context(line),
            rank=2 if soft else _RANK[signature.role],
            kills=signature.role in _KILLS and not soft,
            phase=phase,
            reason=signature.reason,
            hint=signature.hint,
            host=signature.host,
            known=True,
            id=signature.id,
            general=signature.general,
            symptom=signature.symptom,
        )
        if soft and LOADING.search(line):
            self._suspect = self._suspect or found
        return found

    def _weigh(self, found: Evidence) -> None:
        if found.symptom and self._suspect is not None:
            found = replace(self._suspect, rank=found.rank, kills=found.kills)
        self.fatal = self.fatal or found.kills
        best = self.best
        if best is not None and found.line == "Killed":
            return  # the shell's word on what something else already tells (an engine kills its own tree, too)
        if best is not None and best.kills and (best.reason, found.reason) == ("child-failed", "terminated"):
            return  # the server goes because its engine went
        if best is not None and best.reason == _CRASH and found.reason == _LOST:
            return  # the rank that crashed is the one that the others lost
        enough = best is not None and (found.rank >= best.rank or (best.weak and found.rank >= _TRACE))
        says_more = enough and not found.weak
        chained = best is not None and best.weak and self._linked
        named = best is not None and _INVALID.search(best.line) is not None and "[type=" in found.line
        taken_back = enough and found.kills and best is not None and best.known and not best.kills
        if best is None or found.rank > best.rank or taken_back or (says_more and (chained or named)):
            self.best, self._after = found, _AFTER
            self._message = _MESSAGE if found.general else 0
        elif self._message and best.general and not found.general and found.rank >= _RANK["explains"]:
            exact = replace(found, rank=best.rank, kills=best.kills or found.kills)
            self.best, self._after, self._message = exact, _AFTER, 0
        elif found.known and not best.known and found.rank == best.rank:
            # The wrapper of an exception that nobody knows still says what it happened in.
            self.best = replace(best, id=found.id, reason=found.reason, hint=found.hint, known=True)

    def _context(self, line: str) -> Tuple[str, ...]:
        return (*self._recent, line)

    def _go_on(self, line: str) -> None:
        """The words of an exception whose own line ends at its name, or at a place in a source that follows: there
        they stand below the caret (Triton)."""
        below, self._caret = self._caret, line.strip() == "^"
        if not (self._message and line and self.best is not None and self.best.line.endswith(":")):
            return
        if below or not _IN_SOURCE.search(self.best.line):
            self.best = replace(self.best, line=f"{self.best.line} {line.strip()}")

    def _follow(self, line: str) -> None:
        if self.best is not None and self._after and line:
            self._after -= 1
            self.best = replace(self.best, context=(*self.best.context, line))
