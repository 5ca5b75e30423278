"""Decides from what is seen of a starting engine whether it came up, broke, hangs, or just takes long.

Pure: no clock, no I/O; every observation carries its time. Standard library only: built verbatim into the host agent.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Pattern, Sequence, Set, Tuple

from .signatures import PHASES, Evidence, Scanner, Signature, clean

#: A process tree that burns less than this share of one core moves nothing (watchdog threads wake up all the time).
_IDLE_SHARE = 0.02
_HZ = 100.0
#: Seconds that a verdict waits for the rest of the log: with a cause in hand, and without one.
_SETTLE, _SETTLE_MAX, _SETTLE_BLIND = 0.5, 1.0, 1.25
_SETTLE_TROUBLE = 3.0  # a request failed, the process lives: a killed scheduler takes it down within 2 s
_STEP_MAX = 5.0  # a longer gap between two observations is the watcher's own pause, not the engine's
_PORT_GRACE = 1.0
_GPU_NOISE = 1 << 20
_TIME_PREFIX: "Pattern[str]" = re.compile(r"^\[[\d\-: ]+\S*\]\s*")


@dataclass(frozen=True)
class Limits:
    """Seconds. Per phase how long nothing may move; `cap` bounds any phase absolutely; `process` is how long systemd
    may take to show a main process."""

    process: float = 15
    imports: float = 30
    weights: float = 120
    graphs: float = 180
    serve: float = 30
    cap: float = 1800

    def of(self, phase: str) -> float:
        """The stall limit of a phase."""
        own = {
            "process": self.process,
            "import": self.imports,
            "weights": self.weights,
            "graphs": self.graphs,
        }
        return own.get(phase, self.serve)


@dataclass(frozen=True)
class Expect:
    """What a good start looks like: `state` is what server info must say, `generations` how many answers count as
    serving, the bounds are the least capacity (None: not judged), `log` False where the unit writes no log that we
    can read."""

    state: Mapping[str, Any] = field(default_factory=dict)
    generations: int = 4
    min_tokens: Optional[int] = None
    min_requests: Optional[int] = None
    min_context: Optional[int] = None
    log: bool = True


@dataclass(frozen=True)
class UnitState:
    """`systemctl show` of the unit (org.freedesktop.systemd1(5)); `exited_at` is ExecMainExitTimestamp on the clock
    of the observations, None while the process lives."""

    active: str
    sub: str
    result: str = "success"
    main_pid: int = 0
    exec_main_status: int = 0
    exec_main_code: int = 0
    n_restarts: int = 0
    invocation: str = ""
    exited_at: Optional[float] = None


@dataclass(frozen=True)
class Probe:
    """What HTTP said: last status of /health (None: no answer yet), whose socket listens on the port (`holder` names
    it in words), generations answered, failures in words."""

    health: Optional[int] = None
    owner: str = "none"
    generations: int = 0
    failures: Sequence[str] = ()
    holder: str = ""


@dataclass(frozen=True)
class Observation:
    """One look at the engine at `t` (seconds, CLOCK_BOOTTIME). `unit` is None until systemd shows the run that is
    watched instead of the one before. Counters are sums over the unit's processes; None
    where the host cannot say."""

    t: float
    unit: Optional[UnitState] = None
    lines: Sequence[str] = ()
    cpu_ticks: Optional[int] = None
    io_bytes: Optional[int] = None
    procs: int = 0
    gpu_bytes: Optional[int] = None
    compilers: int = 0
    probe: Optional[Probe] = None
    server_info: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class Verdict:
    """PASS, FAIL (the release), ENV (the host) or, from `replay` alone, INCONCLUSIVE. `line` is the first fatal line,
    `died_at` when the process ended (None: it lives), `t` when this was decided."""

    kind: str
    phase: str
    reason: str = ""
    line: str = ""
    context: Tuple[str, ...] = ()
    hint: str = ""
    died_at: Optional[float] = None
    t: float = 0.0

    @property
    def lag_s(self) -> Optional[float]:
        """Seconds from the death of the process to this verdict."""
        return None if self.died_at is None else round(max(0.0, self.t - self.died_at), 2)

    def to_json(self) -> Dict[str, Any]:
        """As docs/protocol.md section 5 has it."""
        event = {
            "ev": "verdict",
            "verdict": self.kind,
            "phase": self.phase,
            "reason": self.reason,
            "line": self.line,
        }
        return dict(event, context=list(self.context), hint=self.hint, lag_s=self.lag_s)


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
        self._motion = _Motion()
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
        for raw in obs.lines:
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
        self._dead = _death(unit, self._unit)
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
        elif best is None or (reason and _systemd_knows_better(reason, best)):
            told = best is not None and not reason.startswith("exited")
            line = best.line if best is not None and told else _systemd_says(obs.unit)
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
            f"{key} is {_shown(told)}, planned {_shown(planned)}"
            for key, planned in self.expect.state.items()
            for told in [_told(info, key)]
            if not _same(told, planned)
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
                told = _told(info, key)
                have = told if isinstance(told, int) else None
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
_SYSTEMD_KNOWS = ("oom-kill", "exec-failed", "watchdog", "start-timeout", "stopped")


class _Motion:
    """How long nothing has moved: `still` counts with CPU, `stuck` without it and without disk traffic."""

    def __init__(self) -> None:
        self.still = self.stuck = 0.0
        self._last: Optional[Observation] = None
        self._mark: Tuple[float, int] = (0.0, 0)
        self._lines: Set[str] = set()

    def new_line(self, raw: str, signature: Optional[Signature]) -> bool:
        """Whether a line is news: the same sentence again, or one that only explains waiting, is not."""
        text = _TIME_PREFIX.sub("", raw).strip()
        counts = signature is None or signature.role != "wait" or "done" in signature.pattern.groupindex
        if not text or text in self._lines or '" 503' in text or "HTTP/1" in text:
            return False
        if len(self._lines) > 4000:
            self._lines.clear()
        self._lines.add(text)
        return counts

    def take(self, obs: Observation, fresh: bool) -> None:
        """Account for the time since the observation before."""
        last, self._last = self._last, obs
        if last is None:
            self._mark = (obs.t, obs.cpu_ticks or 0)
            return
        step = min(max(obs.t - last.t, 0.0), _STEP_MAX)
        outer = (
            obs.compilers > 0 or _jumped(obs.gpu_bytes, last.gpu_bytes) or _answered(obs.probe, last.probe)
        )
        inner = fresh or self._busy(obs) or obs.procs != last.procs or obs.io_bytes != last.io_bytes
        self.stuck = 0.0 if outer else self.stuck + step
        self.still = 0.0 if outer or inner else self.still + step

    def _busy(self, obs: Observation) -> bool:
        since, ticks = self._mark
        if obs.cpu_ticks is None:
            return False
        if obs.cpu_ticks < ticks:  # a process left the tree and took its share along
            self._mark = (obs.t, obs.cpu_ticks)
            return False
        if obs.cpu_ticks - ticks < 2 + _IDLE_SHARE * _HZ * (obs.t - since):
            return False
        self._mark = (obs.t, obs.cpu_ticks)
        return True


def _jumped(now: Optional[int], before: Optional[int]) -> bool:
    return now is not None and before is not None and abs(now - before) >= _GPU_NOISE


def _answered(now: Optional[Probe], before: Optional[Probe]) -> bool:
    return now is not None and before is not None and now.generations > before.generations


def _systemd_knows_better(reason: str, best: Evidence) -> bool:
    """Whether the unit's end says more than what the log has: mere consequences, or effects of a kill."""
    return best.rank <= 1 or (best.rank <= 2 and reason in _SYSTEMD_KNOWS)


def _death(unit: UnitState, first: UnitState) -> Optional[Tuple[str, str]]:
    """Why systemd holds the run for over, as (reason, hint); None while it lives."""
    restarted = unit.invocation != first.invocation or unit.n_restarts > first.n_restarts
    gone = unit.active in ("failed", "inactive", "deactivating") or unit.sub in (
        "auto-restart",
        "exited",
        "dead",
    )
    if not gone and not restarted and unit.sub != "auto-restart-queued":
        return None
    if restarted and unit.main_pid:
        return (
            "restarted",
            "the process ended and systemd has started it again: the first failure is what counts",
        )
    if unit.sub.startswith(("stop-sig", "stop")) and unit.result == "success" and unit.main_pid:
        return "stopped", "somebody stopped the unit during the start"
    return _ending(unit)


def _ending(unit: UnitState) -> Tuple[str, str]:
    named = {
        "oom-kill": ("oom-kill", "the kernel's OOM killer ended it: checkpoint against RAM, MemoryMax="),
        "watchdog": ("watchdog", "WatchdogSec= of the unit expired"),
        "timeout": (
            "start-timeout",
            "a limit of the unit expired (TimeoutStartSec=): longer than the load needs",
        ),
    }
    if unit.result in named:
        return named[unit.result]
    if unit.exec_main_code in (2, 3):
        hint = "killed by a signal that the log does not explain: the OOM killer or a person (dmesg | tail)"
        return f"signal-{unit.exec_main_status}", hint
    if 200 <= unit.exec_main_status <= 245:  # systemd.exec(5), "Process exit codes"
        return "exec-failed", f"systemd could not execute the command (status {unit.exec_main_status})"
    if unit.exec_main_status == 0:
        return "exited-0", "exit status 0 of a server is a crash all the same, or somebody stopped it"
    return f"exit-{unit.exec_main_status}", "the process ended by itself; its last lines say why"


def _systemd_says(unit: Optional[UnitState]) -> str:
    if unit is None:
        return ""
    return (
        f"systemd: {unit.active} ({unit.sub}), Result={unit.result}, ExecMainStatus={unit.exec_main_status}"
    )


_ABSENT = object()


def _told(info: Mapping[str, Any], key: str) -> Any:
    """A value of server info: at the top, or in the scheduler's own part."""
    if key in info and info[key] is not None:
        return info[key]
    states = info.get("internal_states")
    if isinstance(states, list) and states and isinstance(states[0], dict) and key in states[0]:
        return states[0][key]
    return info.get(key, _ABSENT)


def _same(told: Any, planned: Any) -> bool:
    if isinstance(planned, bool) or planned is None:
        return told is planned
    return told is not _ABSENT and str(told) == str(planned)


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else str(value)


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
