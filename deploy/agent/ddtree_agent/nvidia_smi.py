"""nvidia-smi, asked in small groups and read without trust: one unknown field empties an answer, and it may hang."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

Answer = Tuple[int, str]
Ask = Callable[[List[str], float], Answer]
#: Fields by the age of the drivers that know them: a group fails as one. `pci.bus_id` joins their rows.
GROUPS: Tuple[Tuple[str, ...], ...] = (
    ("index", "name", "uuid", "driver_version"),
    ("compute_cap",),
    ("memory.total", "memory.used", "memory.free", "compute_mode", "persistence_mode"),
    (
        "ecc.mode.current",
        "ecc.errors.corrected.volatile.total",
        "ecc.errors.uncorrected.volatile.total",
        "ecc.errors.uncorrected.aggregate.total",
        "retired_pages.pending",
    ),
    ("remapped_rows.uncorrectable", "remapped_rows.pending", "remapped_rows.failure"),
    ("gpu_recovery_action",),
    ("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",),
    ("mig.mode.current", "mig.mode.pending"),
    ("fabric.state", "fabric.status"),
    ("fabric.health.summary",),
    (
        "clocks_event_reasons.hw_slowdown",
        "clocks_event_reasons.hw_thermal_slowdown",
        "clocks_event_reasons.hw_power_brake_slowdown",
    ),
)
FIELDS = tuple(field for group in GROUPS for field in group)
#: Where it lies on hosts whose PATH does not have it (WSL, NVIDIA's container mounts, NixOS).
PLACES = ("/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/run/opengl-driver/bin", "/run/current-system/sw/bin")
#: Without the persistence daemon each first look loads the driver's state: some 30 s were seen (failures.md F073).
LIMIT_S = 45.0
_BUS = re.compile(r"(?i)\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b")
_NONE = re.compile(r"(?i)^\[?(n/?a|not supported|requested functionality has been deprecated)\]?$")
_ERROR = re.compile(r"(?i)^\[?(err!|unknown error|gpu is lost|gpu requires reset|.*\berror\b.*)\]?$")
_COMPLAINT = re.compile(
    r"(?i)unable to determine the device handle|gpu is lost|requires? reset|failed|error|not found"
    r"|no devices were found|couldn.t communicate|insufficient permissions|mismatch|fallen off|corrupted|no answer"
)


def find() -> Optional[str]:
    """Its path, None where it is not installed."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=os.pathsep.join(PLACES))


def ask(argv: List[str], limit: float) -> Answer:
    """(exit status, output with errors). 124 at the limit: it is killed and not waited for, because in the driver it
    may sleep where no signal reaches it."""
    env = dict(os.environ, LC_ALL="C")
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return 127, f"{argv[0]}: {error.strerror}"
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        return 124, f"no answer in {limit:g} s"
    return process.returncode, out.decode("utf-8", "replace")


def query(tool: str, what: str, fields: Tuple[str, ...], limit: float, asker: Ask = ask) -> Dict[str, Any]:
    """One group: {"rows": [{field: value}], "said": [complaint], "status": int}. A field that this driver does not know
    is left out of the rows: then the group is asked field by field."""
    keys = ("pci.bus_id", *fields) if what == "gpu" else fields
    argv = [tool, f"--query-{what}={','.join(keys)}", "--format=csv,noheader,nounits"]
    status, text = asker(argv, limit)
    if status in (124, 127) or not unknown_field(text):
        rows, said = read(text, keys)
        return {"rows": rows if status != 124 else [], "said": said, "status": status}
    if len(fields) == 1:
        return {"rows": [], "said": [], "status": 0}
    parts = [query(tool, what, (field,), limit, asker) for field in fields]
    return {
        "rows": [row for part in parts for row in part["rows"]],
        "said": [line for part in parts for line in part["said"]],
        "status": max(part["status"] for part in parts),
    }


def unknown_field(text: str) -> bool:
    """Whether it refused the question because of one field's name."""
    return "is not a valid field to query" in text


def read(text: str, keys: Tuple[str, ...]) -> Tuple[List[Dict[str, str]], List[str]]:
    """Rows of `--format=csv,noheader,nounits`, and the lines between them that are none (a lost GPU's, warnings)."""
    rows, said = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(", ")]
        if len(cells) == len(keys) and not (len(keys) == 1 and _COMPLAINT.search(line)):
            if any(cells):
                rows.append({key: value(cell) for key, cell in zip(keys, cells)})
        elif line.strip():
            said.append(line.strip()[:300])
    return rows, said


def value(cell: str) -> str:
    """A cell as told: "N/A" in one spelling where the card has no such thing, "ERR!" where reading it failed."""
    if _NONE.match(cell):
        return "N/A"
    return "ERR!" if _ERROR.match(cell) else cell


def join(groups: List[Dict[str, Any]]) -> Tuple[Dict[str, Dict[str, str]], List[str]]:
    """The rows of all groups by PCI address, and every complaint once."""
    cards: Dict[str, Dict[str, str]] = {}
    said: List[str] = []
    for group in groups:
        for row in group["rows"]:
            key = short_bus(row.get("pci.bus_id") or "")
            cards.setdefault(key, {}).update({k: v for k, v in row.items() if k != "pci.bus_id"})
        said += [line for line in group["said"] if line not in said and _COMPLAINT.search(line)]
    return cards, said


def short_bus(text: str) -> str:
    """A PCI address in sysfs's spelling: nvidia-smi writes eight digits of domain, the kernel four, in either case."""
    found = _BUS.search(text)
    if not found:
        return text
    parts = found.group(0).lower().split(":")
    domain = parts[0][-4:] if len(parts) == 3 else "0000"
    return ":".join([domain, *parts[-2:]])


def together(jobs: Sequence[Callable[[], Dict[str, Any]]], limit: float) -> List[Optional[Dict[str, Any]]]:
    """Run side by side; None for what has no answer in time."""
    found: List[Optional[Dict[str, Any]]] = [None] * len(jobs)

    def one(i: int) -> None:
        found[i] = jobs[i]()

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    until = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(found)
