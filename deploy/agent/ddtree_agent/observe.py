"""One look at a starting service: its unit, log, processes, port, answers and GPU memory, as one Observation."""

import pkgutil
import time
from typing import Any, Dict, List, Mapping, Optional

from .core.signatures import Signature, load
from .core.watch import Observation, Probe, UnitState
from .observe_gpu import GpuMeter
from .observe_http import HttpProbe
from .observe_log import follow
from .observe_proc import owner, tree, usage
from .systemd import show

_PROPS = ["ActiveState", "SubState", "Result", "MainPID", "ExecMainStatus", "ExecMainCode", "NRestarts"]
_PROPS += ["InvocationID", "ControlGroup", "ExecMainExitTimestampMonotonic"]


def signatures() -> List[Signature]:
    """The table of log lines that travels with the agent."""
    data = pkgutil.get_data(__package__ + ".core", "signatures.json")
    if data is None:
        raise FileNotFoundError("the agent was built without core/signatures.json")
    return load(data.decode())


def now() -> float:
    """Seconds of CLOCK_BOOTTIME, which runs through suspend and is not set by anyone (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Observer:
    """Looks at `service`. Make it after the old process is gone and before the start: what came before is left out,
    the log by its mark (`since`), the unit by the invocation seen now (or `since["invocation"]`).

    log: "journal", "file:PATH" or "none". host: where the port is asked. headers: added to every request.
    """

    def __init__(
        self,
        service: str,
        port: int,
        log: str = "journal",
        since: Optional[Dict[str, Any]] = None,
        host: str = "127.0.0.1",
        headers: Optional[Mapping[str, str]] = None,
        generations: int = 4,
    ) -> None:
        self._service, self._port, self._host = service, port, host
        place = dict(since or {})
        before = place.pop("invocation", None)
        if before is None:
            before = show(service, ["InvocationID"]).get("InvocationID", "")
        self._before: Optional[str] = str(before)
        self._log = follow(service, log, place or None, str(before))
        self._http = HttpProbe(f"http://{host}:{port}", headers, generations)
        self._gpu = GpuMeter()

    def observe(self) -> Observation:
        """Look once; takes as long as one `systemctl show`. Call it about every 0.25 s."""
        props = show(self._service, _PROPS)
        unit = unit_state(props, self._before)
        if unit is not None:
            # From here on an empty invocation is the end of this run: systemd forgot the unit.
            self._before = None
        pids = tree(props.get("ControlGroup", ""), unit.main_pid) if unit is not None else []
        spent = usage(pids)
        whose, holder = owner(self._port, pids, self._host)
        if whose == "ours":
            self._http.allow()
        http = self._http
        return Observation(
            t=now(),
            unit=unit,
            lines=self._log.read(),
            cpu_ticks=spent.cpu_ticks,
            io_bytes=spent.io_bytes,
            procs=spent.procs,
            gpu_bytes=self._gpu.bytes,
            compilers=spent.compilers,
            probe=Probe(http.health, whose, http.generations, tuple(http.failures), holder),
            server_info=http.info,
        )

    def close(self) -> None:
        """Stop following and asking."""
        self._log.close()
        self._http.close()
        self._gpu.close()


def unit_state(props: Mapping[str, str], before: Optional[str]) -> Optional[UnitState]:
    """`systemctl show` as a UnitState; None while it still shows the run `before`, or nothing at all."""
    invocation = props.get("InvocationID", "")
    if not props or (before is not None and invocation in ("", before)):
        return None
    exited = _number(props, "ExecMainExitTimestampMonotonic")
    return UnitState(
        active=props.get("ActiveState", ""),
        sub=props.get("SubState", ""),
        result=props.get("Result", ""),
        main_pid=_number(props, "MainPID"),
        exec_main_status=_number(props, "ExecMainStatus"),
        exec_main_code=_number(props, "ExecMainCode"),
        n_restarts=_number(props, "NRestarts"),
        invocation=invocation,
        exited_at=exited / 1e6 + now() - time.monotonic() if exited else None,
    )


def _number(props: Mapping[str, str], key: str) -> int:
    text = props.get(key, "")
    return int(text) if text.isdigit() else 0
