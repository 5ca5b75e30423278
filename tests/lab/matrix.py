"""Runs cells of the fault matrix on several lab hosts at once; the independent reader judges each."""

from __future__ import annotations

import json
import os
import queue
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import reader
from campaign_faults import Client
from campaign_run import RECOVERY_S
from ddtree_lab.client import Lab
from ddtree_lab.spec import HostSpec
from invariants import Asked
from matrix_faults import DEVICE, FAULTS, Live
from matrix_table import BUDGET, CUT, TABLE, Case
from moments import BULK_FILES, MOMENTS, RELEASES, Trap
from rig import CHECKOUT, STANDIN_SERIES, Rig, where_run

TIMEOUTS = {
    "connect": 5,
    "command": 30,
    "import": 15,
    "weights": 6,
    "graphs": 6,
    "serve": 15,
    "stop": 3,
    "cap": 30,
}
OPERATOR_LIMIT_S = 240
#: A file stands for the router's record that this server is out of it.
DRAINED = "/var/tmp/drained"
DRAIN = {"command": ["/usr/bin/touch", DRAINED], "undo": ["/bin/rm", "-f", DRAINED], "limit": 5}
CANARY = "canary-51c09e77ab"
#: The rollout has not begun, or has ended: a second operator who asks for the same has his way.
FREE = ("P3 begin", "P11 confirmed")
#: A directory in the store that nothing needs.
NEEDLESS = "00000000000000aa"
#: Two command lines that differ: each case leaves the one for the other.
BUDGETS = (6, 5)


_TRIES = 3


@dataclass
class Row:
    """One cell as it went; what docs/RELIABILITY.md is made of. `why`: every promise that did not hold.

    over_deadline_s: where nobody was left to confirm, from the confirm deadline to the old service's answer.
    """

    point: str
    fault: str
    expected: str
    outcome: str = "?"
    exit_code: int | None = None
    ok: bool = False
    recovery_s: float | None = None
    lag_s: float | None = None
    over_deadline_s: float | None = None
    commit: str = ""
    seconds: float = 0.0
    struck: bool = False
    host: str = ""
    why: list[str] = field(default_factory=list)


def out_path() -> Path:
    return Path(os.environ.get("DDTREE_MATRIX_OUT") or CHECKOUT / "build" / "reliability" / "matrix.json")


def run(lab: Lab, cases: Iterable[Case], project: Path, hosts: int) -> list[Row]:
    """Every case on one of `hosts` hosts; the rows in the order of the cases.

    They are written to out_path() as well, in the place of what stood there for the same cells.
    """
    # A run in a shell's background inherits SIGINT ignored, and so would the operators that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["DDTREE_MATRIX_CANARY"] = CANARY
    cases = list(cases)
    where = where_run()
    rows: dict[int, Row] = {}
    writing = threading.Lock()
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(cases)):
        waiting.put(number)

    def work(name: str) -> None:
        bench = Bench(lab, name, project / name)
        while True:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                break
            row = rows[number] = bench.play(cases[number])
            row.commit = where["commit"]
            print(_line(row), flush=True)
            with writing:
                _write(out_path(), row, where)
        bench.close()

    threads = [
        threading.Thread(target=work, args=(f"fm{n}",), daemon=True) for n in range(min(hosts, len(cases)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [rows[key] for key in sorted(rows)]


class Bench:
    """One host, used case after case; one that a case broke is made anew."""

    def __init__(self, lab: Lab, name: str, project: Path) -> None:
        self.lab, self.name, self.project = lab, name, project
        self.rig: Rig | None = None
        self.before: reader.Read = {}
        self.turn = 0
        self.budget = BUDGETS[1]

    def play(self, case: Case) -> Row:
        """Run one case, again on a new host where its moment never came: nothing was struck, so nothing was tried."""
        for _ in range(_TRIES):
            row = self.run(case)
            if row.struck:
                break
        return row

    def run(self, case: Case) -> Row:
        """Run one case; never raises: what went wrong stands in the row."""
        row = Row(case.point, case.fault, case.expected, host=self.name)
        began = time.monotonic()
        try:
            if self.rig is None:
                self._boot()
            self._case(case, row)
        except Exception as error:  # a case that breaks its host must not take the others' hosts with it
            row.why.append(f"{type(error).__name__}: {error}"[:2000])
        row.ok = not row.why
        row.seconds = round(time.monotonic() - began, 1)
        if not row.ok:
            self._keep_evidence(case)
            self.close()
        return row

    def close(self) -> None:
        """Destroy the host."""
        self.rig = None
        if self.name in self.lab.status():
            self.lab.remove(self.name)

    def _boot(self) -> None:
        self.lab.add(HostSpec(self.name, engine="standin"))
        host = self.lab.host(self.name)
        host.wait_http(limit_s=90)
        shutil.rmtree(self.project, ignore_errors=True)
        self.rig = Rig(host, self.project, timeouts={**TIMEOUTS, "confirm": 30})
        self.rig.adopt()
        self.before = reader.read(host, (CANARY,))

    def _case(self, case: Case, row: Row) -> None:
        assert self.rig is not None
        rig, self.turn = self.rig, self.turn + 1
        # gc changes nothing that a later deploy could be told from
        budget = self.budget if "gc" in case.verb else next(b for b in BUDGETS if b != self.budget)
        keys: dict[str, Any] = {"budget": budget}
        if case.bulk:
            keys["series"] = str(bulk_series(self.project / f"bulk-{self.turn}"))
        if case.drain:
            keys["drain"] = DRAIN
        keys["environment"] = {"MATRIX_TOKEN": {"secret": "env:DDTREE_MATRIX_CANARY"}}
        rig.configure(**keys, timeouts={**TIMEOUTS, "confirm": case.confirm_s})
        rig.scenario({"when": {BUDGET: budget}, "then": case.then})
        if "gc" in case.verb:
            rig.host.check(["mkdir", "-p", f"{RELEASES}/{NEEDLESS}"])
        if case.verdict == "ENV":
            rig.host.write(DEVICE, "")
        live, client, struck = self._strike(case)
        row.struck = True
        code, document, said = _ended(live, case)
        reader.settle(rig.host)
        client.end()
        read = reader.read(rig.host, (CANARY,))
        row.recovery_s = client.recovery_s(struck)
        row.exit_code = code
        row.outcome, row.lag_s = outcome(read, self.before), lag(read, self.before)
        info = None if "gc" in case.verb else {BUDGET: budget}
        cut_off = case.fault in CUT and row.outcome == "RB"
        asked = Asked(
            alone=not live.others,
            noticed_s=None,
            info=info,
            said=said,
            recovery_s=_since_gated(read, self.before, client) if cut_off else None,
            recovery_limit_s=case.confirm_s + RECOVERY_S,
        )
        if asked.recovery_s is not None:
            row.over_deadline_s = round(asked.recovery_s - case.confirm_s, 1)
        row.why += reader.check(read, self.before, code, document, asked, (CANARY,))
        if (row.outcome, code) not in case.allowed:
            row.why.append(f"{row.outcome} {code} is not in {case.expected}: {said[-1500:]}")
        row.why += [
            f"the other operator: exit {run.rc}: {run.err[-300:]}"
            for run in live.others
            if run.rc != (0 if case.point in FREE else 4)
        ]
        if rig.host.exec(["test", "!", "-e", DRAINED])[0]:
            row.why.append("the server is still drained")
        if case.verdict:
            row.why += _blamed(read, self.before, case.verdict)
        self._converge(case, row, read, keys)
        self.budget = budget

    def _strike(self, case: Case) -> tuple[Live, Client, float]:
        assert self.rig is not None
        rig = self.rig
        with Trap(rig.host, MOMENTS[case.point]) as trap:
            operator = rig.start(*case.verb)
            try:
                trap.wait()
            except AssertionError:
                Rig.kill(operator)
                raise
        live = Live(rig, operator, trap.sight, case.confirm_s)
        client = Client(rig.host)
        client.start()
        struck = time.time()
        FAULTS[case.fault](live)
        return live, client, struck

    def _converge(self, case: Case, row: Row, read: reader.Read, keys: dict[str, Any]) -> None:
        """The same command again: it ends as asked, and nothing of the interrupted one is left."""
        assert self.rig is not None
        rig = self.rig
        rig.scenario()
        rig.configure(**keys, timeouts={**TIMEOUTS, "confirm": 30})
        again = rig.cli(*case.verb, timeout=OPERATOR_LIMIT_S)
        if again.rc != 0:
            row.why.append(f"I9: the same command again: exit {again.rc}: {again.err[-1000:]}")
            return
        reader.settle(rig.host)
        after = reader.read(rig.host, (CANARY,))
        info = None if "gc" in case.verb else {BUDGET: keys["budget"]}
        asked = Asked(swept=True, noticed_s=None, info=info)
        row.why += [f"again: {why}" for why in reader.check(after, read, again.rc, again.json, asked)]
        self.before = after

    def _keep_evidence(self, case: Case) -> None:
        if self.name not in self.lab.status():
            return
        name = "".join(c if c.isalnum() else "-" for c in case.name)
        target = out_path().parent / "failed" / f"{name}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        script = (
            "journalctl --no-pager -n 150; tail -n 40 /var/lib/ddtree/*/txn/*/events.jsonl;"
            " cat /var/lib/ddtree/*/history.jsonl; systemctl list-units 'ddtree*' --all"
        )
        try:
            target.write_text(self.lab.host(self.name).exec(script, 30)[1])
        except Exception as error:  # the host is what broke
            target.write_text(str(error))


def outcome(read: reader.Read, before: reader.Read) -> str:
    """OLD, RS, RB or NEW, by the host's own record."""
    if read["confirmed"].get("release") != before["confirmed"].get("release"):
        return "NEW"
    new = [txn for name, txn in read["transactions"].items() if name not in before["transactions"]]
    if new:
        return "OLD" if (new[-1]["outcome"] or {}).get("touched") is False else "RB"
    left = set(read["releases"]) - set(before["releases"])
    return "RS" if read["staging"] or left else "OLD"


def lag(read: reader.Read, before: reader.Read) -> float | None:
    """The longest time from a process's death to its verdict (seconds), None where none died."""
    new = [txn for name, txn in read["transactions"].items() if name not in before["transactions"]]
    lags = [verdict.get("lag_s") for txn in new for verdict in txn["verdicts"]]
    return max((each for each in lags if each is not None), default=None)


def _since_gated(read: reader.Read, before: reader.Read, client: Client) -> float | None:
    """Seconds from GATED, when the confirm deadline begins, to the last moment without an answer; None without it."""
    new = [txn for name, txn in read["transactions"].items() if name not in before["transactions"]]
    gated = next((float(t) for txn in new for t, state in txn["states"] if state == "GATED"), None)
    return None if gated is None else client.recovery_s(gated)


def bulk_series(target: Path) -> Path:
    """The stand-in's DDTREE series with files enough that a transfer can be cut in its middle."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(STANDIN_SERIES, target)
    bulk = target / "files" / "srt" / "bulk"
    bulk.mkdir(parents=True)
    for number in range(BULK_FILES):
        (bulk / f"{number:03}.bin").write_bytes(random.randbytes(1 << 16))
    return target


def _ended(live: Live, case: Case) -> tuple[int | None, dict[str, Any] | None, str]:
    """The operator's exit code and document; None both where he is dead."""
    if case.fault == "operator SIGKILL":
        return None, None, ""
    out, err = live.operator.communicate(timeout=OPERATOR_LIMIT_S)
    document: dict[str, Any] | None = json.loads(out) if out.strip() else None
    return live.operator.returncode, document, out + err


def _blamed(read: reader.Read, before: reader.Read, verdict: str) -> list[str]:
    new = [txn for name, txn in read["transactions"].items() if name not in before["transactions"]]
    said = [((txn["outcome"] or {}).get("failure") or {}).get("verdict") for txn in new]
    return [] if said[-1:] == [verdict] else [f"the record blames {said}, not {verdict}"]


def _line(row: Row) -> str:
    end = "ok" if row.ok else "; ".join(row.why)[:400]
    return f"{row.point} / {row.fault}: {row.outcome} {row.exit_code} in {row.seconds} s on {row.host}: {end}"


def _write(path: Path, row: Row, where: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {(other["point"], other["fault"]): other for other in found} | {
        (row.point, row.fault): asdict(row)
    }
    order = [(case.point, case.fault) for case in TABLE]
    kept = [rows[key] for key in order if key in rows]
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"schema_version": 1, **where, "rows": kept}, indent=1) + "\n")
    part.rename(path)
