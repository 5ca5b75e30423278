"""What goes wrong, and when: the rules of the JSON file that $STANDIN_SCENARIO names, read at each start.

No variable or no such file: healthy and fast. The file is a list of rules; all whose `when` holds apply, in order:

    [{"when": {"algorithm": "DDTREE"}, "then": {"hang": "weights"}}]

`when` (all must hold; {} always): "algorithm" (null = no speculation), "package" (a glob on the directory this package
was imported from: tells a release from the base), or any argument, e.g. "port", "tp_size".
Phases, in order: "import" (main process, before the arguments are logged), "spawn" (import in the scheduler),
"weights", "graphs" (scheduler), "serve" (main, listening, not ready), "ready" (main, after "fired up").
`then`, all optional:
    "delay":  {PHASE: seconds}              "log":    {PHASE: [lines]}  printed as they are
    "slow":   {PHASE: seconds}              progress lines every 0.2 s, CPU burning
    "hang":   PHASE                         no CPU, no log, for ever
    "raise":  {PHASE: [traceback lines]}    the process fails as the engine does after an exception
    "exit":   {PHASE: code or "SIGNAME"}    the process ends without a word; 0 is a code
    "exit_main": {PHASE: code or "SIGNAME"} the main process ends so, whichever process is in PHASE
    "die_after": {"seconds": s, "process": "main" | "scheduler" | "detokenizer", "signal": "SIGKILL"}
                                            (seconds after ready)
    "generate": "hang" | "error" | "garbage"  what clients get (health stays 200); "garbage" commits one wrong token
    "garbage_at": n                         output position of that token (default 0)
    "step_seconds": s                       time of one verify step (default 0)
    "server_info": {key: value}             said instead of the truth
    "capacity": {"max_total_num_tokens" | "max_running_requests" | "context_len": n}
    "ignore_sigterm": true
"""

import fnmatch
import json
import os
import signal
import sys
import time
from typing import Any, Dict, List, Optional

PHASES = ("import", "spawn", "weights", "graphs", "serve", "ready")
BY_PHASE = ("delay", "log", "slow", "raise", "exit", "exit_main")
OTHERS = (
    "hang",
    "die_after",
    "generate",
    "garbage_at",
    "step_seconds",
    "server_info",
    "capacity",
    "ignore_sigterm",
)
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class StandinFailure(RuntimeError):
    """A failure asked for by the scenario; its text is the traceback to print."""


class Scenario:
    """The behaviour of one start, merged from the rules that hold."""

    def __init__(self, then: Dict[str, Any]) -> None:
        self.then = then

    def get(self, key: str, default: Any = None) -> Any:
        """One behaviour, or its default."""
        return self.then.get(key, default)

    def reach(self, phase: str, main_pid: Optional[int] = None) -> None:
        """Do what is asked for in this phase; may not return. StandinFailure for "raise" outside the main process."""
        mine = {kind: self.then[kind][phase] for kind in BY_PHASE if phase in self.then.get(kind, {})}
        time.sleep(mine.get("delay", 0))
        if "log" in mine:
            say(mine["log"])
        if "slow" in mine:
            _burn(phase, mine["slow"])
        if self.then.get("hang") == phase:
            while True:
                signal.pause()
        if "raise" in mine:
            if main_pid is not None and phase != "spawn":
                raise StandinFailure("\n".join(mine["raise"]))
            say(mine["raise"])
            _end(1)
        if "exit_main" in mine:
            _end(mine["exit_main"], main_pid)
        if "exit" in mine:
            _end(mine["exit"])


def say(lines: List[str]) -> None:
    """Print lines of one's own, without the logger's time stamp."""
    sys.stderr.write("".join(line + "\n" for line in lines))
    sys.stderr.flush()


def _burn(phase: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    total = max(1, round(seconds / 0.2))
    for done in range(total):
        name = "Capturing batches" if phase == "graphs" else "Multi-thread loading shards"
        clock = f"00:{done // 5:02d}<00:{(total - done) // 5:02d}"
        say([f"{name}: {100 * done // total:3d}% Completed | {done}/{total} [{clock},  5.00it/s]"])
        tick = min(end, time.monotonic() + 0.2)
        while time.monotonic() < tick:
            sum(range(1000))


def _end(how: Any, main_pid: Optional[int] = None) -> None:
    """End this process, or the main one: by signal name, or by exit code."""
    if isinstance(how, str):
        os.kill(main_pid or os.getpid(), getattr(signal, how))
        signal.pause()
    if main_pid is not None:
        raise SystemExit(f"main:{how}")
    os._exit(how)


def load_scenario(args: Any) -> Scenario:
    """The scenario of a start with these ServerArgs; SIGTERM may be ignored from here on. SystemExit for a bad file."""
    path = os.environ.get("STANDIN_SCENARIO", "")
    if not path or not os.path.exists(path):
        return Scenario({})
    try:
        with open(path, encoding="utf-8") as stream:
            rules = json.load(stream)
    except ValueError as error:
        raise SystemExit(f"standin: {path}: not JSON: {error}") from None
    then: Dict[str, Any] = {}
    if not isinstance(rules, list):
        raise SystemExit(f"standin: {path}: expected a list of rules.")
    for number, rule in enumerate(rules, 1):
        problem = _problem(rule)
        if problem:
            raise SystemExit(f"standin: {path}: rule {number}: {problem}")
        if _holds(rule["when"], args):
            then.update(rule["then"])
    if then.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the children inherit it
    return Scenario(then)


def _problem(rule: Any) -> str:
    if not isinstance(rule, dict) or set(rule) != {"when", "then"}:
        return 'expected {"when": {…}, "then": {…}}.'
    for kind, value in rule["then"].items():
        if kind not in BY_PHASE + OTHERS:
            return f"unknown behaviour {kind!r}; known: {', '.join(BY_PHASE + OTHERS)}."
        phases = [value] if kind == "hang" else list(value) if kind in BY_PHASE else []
        for phase in phases:
            if phase not in PHASES:
                return f"{kind}: unknown phase {phase!r}; known: {', '.join(PHASES)}."
        ends = (
            list(value.values())
            if kind in ("exit", "exit_main")
            else [value.get("signal")]
            if kind == "die_after"
            else []
        )
        for end in ends:
            if not (isinstance(end, int) or end in signal.Signals.__members__):
                return f"{kind}: {end!r} is neither an exit code nor a signal name."
    return ""


def _holds(when: Dict[str, Any], args: Any) -> bool:
    facts = dict(vars(args), algorithm=args.speculative_algorithm)
    return all(
        fnmatch.fnmatch(PACKAGE, value) if key == "package" else facts.get(key) == value
        for key, value in when.items()
    )
