"""Decides from what is seen of a starting engine whether it came up, broke, hangs, or just takes long.

Pure: no clock, no I/O; every observation carries its time. Standard library only: built verbatim into the host agent.
"""

import re
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from . import watch_unit
from .log_text import LONGEST, clean
from .scanner import Evidence, Scanner
from .signatures import PHASES, Signature
from .watch_facts import Expect, Limits, Observation, Probe, UnitState, Verdict
from .watch_info import same, shown, told
from .watch_motion import Motion

__all__ = [
    "Expect",
    "Limits",
    "Observation",
    "Probe",
    "UnitState",
    "Verdict",
    "Watch",
    "blame_host",
    "replay",
    "start",
]

#: Seconds that a verdict waits for the rest of the log: with a cause in hand, and without one.
_SETTLE, _SETTLE_MAX, _SETTLE_BLIND = 0.5, 1.0, 1.25
_SETTLE_TROUBLE = 3.0  # a request failed, the process lives: a killed scheduler takes it down within 2 s
_PORT_GRACE = 1.0


#: One event as docs/protocol.md section 5 has it; core.events gives it back its type on the other side.
Event = Dict[str, Any]


def start(limits: Limits, expect: Expect, signatures: List[Signature]) -> "Watch":
    """Begin to watch a start that has just been asked for."""
    return Watch(limits, expect, signatures)


def blame_host(verdict: Verdict, faults: Sequence[str]) -> Verdict:
    """A FAIL becomes ENV where a second look at the host found faults (device gone, Xid, disk full), in words."""
    if verdict.kind != "FAIL" or not faults:
        return verdict
    hint = f"the host broke, not the release: {faults[0]}" + (
        f" (log: {verdict.hint})" if verdict.hint else ""
    )
    return replace(verdict, kind="ENV", reason="host", hint=hint, context=(*verdict.context, *faults))


class Watch:
    """The state of one watched start. Feed observations in order of time; read the events that they cause."""

    def __init__(self, limits: Limits, expect: Expect, signatures: List[Signature]) -> None:
        self.limits, self.expect = limits, expect
        self.phase = PHASES[0]
        self.verdict: Optional[Verdict] = None
        self.scanner = Scanner(signatures)
        self._milestones = [s for s in signatures if s.role in ("passed", "entered")]
        self._counters = [s for s in signatures if s.role == "wait" and "done" in s.pattern.groupindex]
        self._motion = Motion()
        self._events: List[Event] = []
        self._begun: Optional[float] = None
        self._unit: Optional[UnitState] = None  # first state of the run that we watch
        self._dead: Optional[Tuple[str, str]] = None
        self._died_at: Optional[float] = None
        self._lost_at: Optional[float] = None  # when death or a fatal line was first seen
        self._foreign_since: Optional[float] = None
        self._trouble = ""
        self._ready = False
        self._captured = False
        self._capacity: Dict[str, int] = {}
        self._noted: Set[str] = set()
        self._said = ""
        self._waiting: Optional[Tuple[Signature, str]] = None
        self.log_says_ready = False

    def observe(self, obs: Observation) -> List[Event]:
        """Take one observation; return what it changed. After PASS it goes on guarding (phase `hold`): a later death
        or failure is a new verdict. After a verdict other than PASS nothing more comes."""
        self._events = []
        if self.verdict is not None and self.verdict.kind != "PASS":
            return []
        if self._begun is None:
            self._begun = obs.t
        self._greet(obs)
        fresh = self._read(obs)
        self._look_at_unit(obs)
        self._look_at_port(obs)
        if self._lost_at is not None:
            self._settle(obs)
        else:
            self._advance(obs)
            if self.verdict is None:
                self._stall(obs, fresh)
        return self._events

    def _greet(self, obs: Observation) -> None:
        if self.phase == "process" and obs.unit is not None and obs.unit.main_pid:
            self._pass_until("process", obs.t)

    # --- the log ---------------------------------------------------------------------------------------------

    def _read(self, obs: Observation) -> bool:
        """Scan the new lines; True where one of them is progress."""
        fresh = False
        for line in obs.lines:
            raw = line[:LONGEST]
            self._milestone(raw, obs.t)
            signature = self.scanner.feed(raw, self.phase)
            self._note(signature, raw)
            fresh = self._motion.new_line(raw, signature) or fresh
        if self.scanner.fatal and self._lost_at is None:
            self._lost_at = obs.t
        return fresh

    def _milestone(self, raw: str, t: float) -> None:
        for mark in self._milestones:
            found = mark.pattern.search(raw)
            if not found:
                continue
            target = next(iter(mark.phases))
            for name, value in found.groupdict().items():
                self._capacity[name] = min(int(value), self._capacity.get(name, int(value)))
            if mark.role == "entered":
                self._captured = True
                self._pass_until(PHASES[PHASES.index(target) - 1], t)
            elif target == "serve":
                self.log_says_ready = True  # the engine says so itself: never enough, an answer counts
                self._pass_until("graphs", t)
            else:
                self._pass_until(target, t)
        for counter in self._counters:
            found = counter.pattern.search(raw)
            if found:
                self._progress(f"{found.group('done')}/{found.group('all')}")

    def _note(self, signature: Optional[Signature], raw: str) -> None:
        if signature is None:
            return
        if signature.role == "wait":
            self._waiting = (signature, clean(raw))
        if signature.role in ("note", "explains") and signature.id not in self._noted:
            self._noted.add(signature.id)
            self._events.append({"ev": "log", "line": clean(raw)})

    def _progress(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._events.append({"ev": "progress", "phase": self.phase, "text": text})

    # --- death -----------------------------------------------------------------------------------------------

    def _look_at_unit(self, obs: Observation) -> None:
        unit = obs.unit
        if unit is None or self._dead is not None:
            return
        if self._unit is None:
            self._unit = unit
        self._dead = watch_unit.death(unit, self._unit)
        if self._dead is not None:
            self._died_at = unit.exited_at if unit.exited_at is not None else obs.t
            self._lost_at = obs.t if self._lost_at is None else self._lost_at

    def _look_at_port(self, obs: Observation) -> None:
        if obs.probe is None or obs.probe.owner != "other":
            self._foreign_since = None
            return
        if self._foreign_since is None:
            self._foreign_since = obs.t
        if obs.t - self._foreign_since >= _PORT_GRACE and self._lost_at is None:
            self._fail(
                obs, "port-taken", f"the port is held by {obs.probe.holder or 'another process'}", _PORT_HINT
            )

    def _settle(self, obs: Observation) -> None:
        """Decide once the log had its moment to arrive: the first cause is often the last to be written out."""
        assert self._lost_at is not None
        waited = obs.t - self._lost_at
        if self._died_at is not None:
            waited = max(waited, obs.t - self._died_at - 0.15)
        best = self.scanner.best
        if best is not None and best.rank > 2:
            if waited < _SETTLE or (obs.lines and waited < _SETTLE_MAX):
                return
        elif waited < (_SETTLE_BLIND if self._died_at is not None or self.scanner.fatal else _SETTLE_TROUBLE):
            return
        self._conclude(obs)

    def _conclude(self, obs: Observation) -> None:
        best, (reason, hint) = self.scanner.best, self._dead or ("", "")
        if self._trouble and self._dead is None and not self.scanner.fatal:
            self._fail(
                obs, "generation-failed", self._trouble, "the server is up but does not answer requests"
            )
        elif best is None or (reason and watch_unit.knows_better(reason, best)):
            told = best is not None and not reason.startswith("exited")
            line = best.line if best is not None and told else watch_unit.says(obs.unit)
            context = best.context if best is not None and told else tuple(self.scanner.recent())
            self._decide(obs, "FAIL", reason, line, context, hint)
        else:
            if best.reason == "port-taken" and obs.probe is not None and obs.probe.holder:
                best = replace(
                    best, hint=f"the port is held by {obs.probe.holder}: stop it, or change the port"
                )
            phase = best.phase if best.phase in PHASES else self.phase
            kind = "ENV" if best.host else "FAIL"
            self._decide(obs, kind, best.reason, best.line, best.context, best.hint, phase)

    # --- getting on ------------------------------------------------------------------------------------------

    def _advance(self, obs: Observation) -> None:
        probe = obs.probe
        if probe is None:
            return
        if probe.owner == "ours" and probe.health is not None:
            self._pass_until("graphs", obs.t)  # the engine opens its port last, whatever its log says
            if probe.health == 200 and not self._ready:
                self._ready, self._motion.stuck = True, 0.0
        if self._ready and probe.failures:
            # A dying server drops requests first: its own last words, if any come, are the better cause.
            self._trouble, self._lost_at = probe.failures[0], obs.t
        elif self.phase == "serve" and self._ready and probe.generations >= self.expect.generations:
            self._pass_until("serve", obs.t)
        if self.phase == "mode" and self.verdict is None and obs.server_info is not None:
            self._judge_mode(obs, obs.server_info)
        if self.phase == "capacity" and self.verdict is None and obs.server_info is not None:
            self._judge_capacity(obs, obs.server_info)

    def _judge_mode(self, obs: Observation, info: Mapping[str, Any]) -> None:
        wrong = [
            f"{key} is {shown(said)}, planned {shown(planned)}"
            for key, planned in self.expect.state.items()
            for said in [told(info, key)]
            if not same(said, planned)
        ]
        if wrong:
            self._fail(
                obs, "mode-mismatch", "; ".join(wrong), "the server runs, but not in the mode of the plan"
            )
        else:
            self._pass_until("mode", obs.t)

    def _judge_capacity(self, obs: Observation, info: Mapping[str, Any]) -> None:
        bounds = {
            "tokens": (self.expect.min_tokens, "max_total_num_tokens"),
            "requests": (self.expect.min_requests, "max_running_requests"),
            "context": (self.expect.min_context, "max_req_input_len"),
        }
        for name, (bound, key) in bounds.items():
            if bound is None:
                continue
            have = self._capacity.get(name)
            if have is None:
                said = told(info, key)
                have = said if isinstance(said, int) else None
            if have is None:
                # The log line may still be on its way, and another engine release may not say it at all.
                self._events.append({"ev": "note", "text": f"{key} is not told: not compared with {bound}"})
            elif have < bound:
                self._fail(obs, "capacity", f"{key} is {have}, at least {bound} is needed", _CAPACITY_HINT)
                return
        self._pass_until("capacity", obs.t)
        self._decide(obs, "PASS", "", "", (), "", "capacity")

    def _pass_until(self, target: str, t: float) -> None:
        """Every phase up to and with `target` is over."""
        if self.phase == "hold":
            return
        while self.phase != "hold" and PHASES.index(self.phase) <= PHASES.index(target):
            passed: Event = {"ev": "phase", "phase": self.phase, "seconds": round(t - self._since(t), 1)}
            if self.phase == "graphs" and not self._captured:
                passed["skipped"] = True
            self._events.append(passed)
            position = PHASES.index(self.phase) + 1
            self.phase = PHASES[position] if position < len(PHASES) else "hold"
            self._begun, self._waiting = t, None
            self._motion.still = self._motion.stuck = 0.0

    def _since(self, t: float) -> float:
        return t if self._begun is None else self._begun

    # --- standing still --------------------------------------------------------------------------------------

    def _stall(self, obs: Observation, fresh: bool) -> None:
        self._motion.take(obs, fresh)
        if obs.t - self._since(obs.t) > self.limits.cap:
            self._fail(obs, "cap", f"phase {self.phase} took longer than {self.limits.cap:g} s", _STALL_HINT)
            return
        spent, limit = self._motion.still, self._limit()
        if self.phase in ("serve", "mode", "capacity"):
            # An idle scheduler polls at full speed: its CPU time says nothing. Warm-up may compile until the first 200.
            hard = self.limits.serve if self._ready else max(self.limits.serve, self.limits.graphs)
            if self._motion.stuck >= hard:
                spent, limit = self._motion.stuck, hard
        if self.phase == "process" and obs.unit is not None and obs.unit.active == "activating":
            return
        if spent >= limit:
            seen = self._waiting[1] if self._waiting else (self.scanner.recent() or [""])[-1]
            hint = self._waiting[0].hint if self._waiting and self._waiting[0].hint else _STALL_HINT
            self._fail(
                obs,
                "stall",
                seen or f"nothing moved for {limit:g} s",
                f"nothing moved for {limit:g} s: {hint}",
            )

    def _limit(self) -> float:
        if not self.expect.log and self.phase in ("import", "weights"):
            return max(self.limits.imports, self.limits.weights, self.limits.graphs)
        return self.limits.of(self.phase)

    # --- deciding --------------------------------------------------------------------------------------------

    def _fail(self, obs: Observation, reason: str, line: str, hint: str) -> None:
        self._decide(obs, "FAIL", reason, clean(line), tuple(self.scanner.recent()), hint)

    def _decide(
        self,
        obs: Observation,
        kind: str,
        reason: str,
        line: str,
        context: Tuple[str, ...],
        hint: str,
        phase: str = "",
    ) -> None:
        self.verdict = Verdict(kind, phase or self.phase, reason, line, context, hint, self._died_at, obs.t)
        self._events.append(self.verdict.to_json())


_PORT_HINT = "requests to this port reach another server: stop it, or change the port"
_STALL_HINT = "CPU, disk, GPU memory and log all stood still; py-spy dump of the scheduler says where"
_CAPACITY_HINT = (
    "memory was taken by something else, or by the draft and its graphs: the pool shrank instead of failing"
)


def replay(text: str, signatures: List[Signature], expect: Optional[Expect] = None) -> Verdict:
    """What a whole log means by itself (`diagnose`): the same rules without a live process. A log that reached
    "ready" without a fatal line is PASS; one that ends before that without a cause is INCONCLUSIVE."""
    watch = start(Limits(), expect or Expect(), signatures)
    alive = UnitState("active", "running", main_pid=1, invocation="log")
    end = 0.0
    for end, line in enumerate(re.split(r"[\r\n]+", text)):
        watch.observe(Observation(t=end * 1e-6, unit=alive, lines=(line,)))
    last = Observation(t=end * 1e-6, unit=alive)
    best: Optional[Evidence] = watch.scanner.best
    if best is not None and (watch.scanner.fatal or not watch.log_says_ready):
        watch._conclude(last)
    else:
        kind = "PASS" if watch.log_says_ready else "INCONCLUSIVE"
        hint = "" if kind == "PASS" else f"the log ends in phase {watch.phase} without a fatal line"
        watch._decide(
            last, kind, "", (watch.scanner.recent() or [""])[-1], tuple(watch.scanner.recent()), hint
        )
    assert watch.verdict is not None
    return watch.verdict
