"""What the watch of a start is told, expects and answers: limits, observations, the verdict.

Pure, standard library only: built verbatim into the host agent.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple


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
