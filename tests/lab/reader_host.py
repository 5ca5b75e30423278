"""What a host itself shows, as one JSON document: the half of the independent reader that runs there.

Standard library only and none of the product's code; sent over SSH, it leaves nothing behind. `reader.py` documents
the document.
"""

import fcntl
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any, Optional

Document = dict[str, Any]
OPT, VAR = "/opt/ddtree", "/var/lib/ddtree"
PROPERTIES = (
    "MainPID,ActiveState,SubState,DropInPaths,NeedDaemonReload,UnitFileState,ControlGroup,InvocationID"
)
#: Where an operator's own things lie on a lab host, and what design section 3 lets the product write there.
THEIRS = ["/etc", "/opt", "/usr", "/root", "/home", "/srv", "/var/lib", "/var/spool", "/var/cache"]
THEIRS += ["/run/systemd/system"]
#: Written by the host itself while it runs, and by the tests.
HOST_OWN = ["/var/lib/systemd", "/var/lib/dbus", "/etc/resolv.conf", "/var/cache/ldconfig", "/etc/.pwd.lock"]
BY_TESTS = ["/etc/standin.json"]


def said(*words: str) -> str:
    """Standard output of a command, '' where it fails or is not there."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def text_of(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def json_of(path: str) -> Any:
    text = text_of(path)
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return {"damaged": text[:200]}


def names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def sha256(path: str) -> str:
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            whole.update(block)
    return whole.hexdigest()


def boot() -> str:
    """The kernel's boot and, in a container, the start of its init."""
    init = (text_of("/proc/1/stat") or ") " + "0 " * 30).rsplit(")", 1)[1].split()[19]
    return (text_of("/proc/sys/kernel/random/boot_id") or "").strip() + "-" + init


def service(unit: str) -> Document:
    shown = dict(
        line.split("=", 1)
        for line in said("systemctl", "show", "-p", PROPERTIES, unit).splitlines()
        if "=" in line
    )
    pid = int(shown.get("MainPID") or 0)
    pairs = (text_of(f"/proc/{pid}/environ") or "").split("\0") if pid else []
    environ = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {
        "main_pid": pid,
        "active": shown.get("ActiveState"),
        "sub": shown.get("SubState"),
        "invocation": shown.get("InvocationID"),
        "enabled": shown.get("UnitFileState"),
        "dropins": shown.get("DropInPaths", "").split(),
        "need_reload": shown.get("NeedDaemonReload") == "yes",
        "cgroup": shown.get("ControlGroup", ""),
        "release": environ.get("DDTREE_RELEASE"),
        "pythonpath": environ.get("PYTHONPATH", "").split(":")[0],
    }


def dropin_paths(unit: str) -> dict[str, str]:
    """Of all drop-ins these two alone are the product's, the operator's own lie beside them."""
    return {
        "trial": f"/run/systemd/system/{unit}.d/60-ddtree-trial.conf",
        "kept": f"/etc/systemd/system/{unit}.d/50-ddtree.conf",
    }


def dropin(path: str) -> Optional[Document]:
    text = text_of(path)
    found = re.search(r"DDTREE_RELEASE=([0-9a-f]+)", text or "")
    return None if text is None else {"text": text, "release": found.group(1) if found else None}


def release(digest: str) -> Document:
    """One release, every byte hashed: what of it is not as its manifest says."""
    top = os.path.join(OPT, "releases", digest)
    manifest = json_of(os.path.join(top, "manifest.json"))
    if not isinstance(manifest, dict) or "engine" not in manifest:
        return {"problems": ["manifest.json is missing or damaged"], "sha256": None, "mode": None, "argv": []}
    package = os.path.join(top, "overlay", manifest["engine"]["name"])
    links = tuple(link + "/" for link in manifest["links"])
    want = dict(manifest["base"]["files"], **{p: e["sha256"] for p, e in manifest["overlay"].items()})
    want = {path: sha for path, sha in want.items() if not path.startswith(links)} if links else want
    have = {}
    for folder, dirs, files in os.walk(package):
        dirs[:] = [name for name in dirs if name != "__pycache__"]
        for name in files:
            path = os.path.join(folder, name)
            have[os.path.relpath(path, package)] = sha256(path)
    problems = [f"{path} is not the manifest's" for path in want if have.get(path) != want[path]]
    problems += [f"{path} is in no manifest" for path in have if path not in want]
    problems += [
        f"link {name} is broken" for name in manifest["links"] if not os.path.isdir(f"{package}/{name}")
    ]
    planned = manifest["dropin"].replace("@RELEASE@", digest)
    if text_of(os.path.join(top, "dropin.conf")) != planned:
        problems.append("dropin.conf is not the manifest's")
    if manifest.get("release") != digest:
        problems.append(f"the manifest is of {manifest.get('release')}")
    return {
        "problems": problems[:20],
        "sha256": hashlib.sha256(
            json.dumps([manifest, sorted(have.items())], sort_keys=True).encode()
        ).hexdigest(),
        "mode": manifest.get("mode"),
        "argv": manifest.get("argv", []),
        "dropin": planned,
        "patched": bool(manifest["overlay"]),
    }


def transactions(state: str) -> Document:
    found = {}
    for name in names(os.path.join(state, "txn")):
        top = os.path.join(state, "txn", name)
        intent = json_of(os.path.join(top, "intent.json")) or {}
        events = [
            json.loads(line) for line in (text_of(top + "/events.jsonl") or "").splitlines() if sound(line)
        ]
        found[name] = {
            **{key: intent.get(key) for key in ("kind", "release", "from", "who")},
            "state": json_of(os.path.join(top, "state")),
            "outcome": json_of(os.path.join(top, "outcome.json")),
            "failed_rollback": os.path.exists(os.path.join(top, "failed-rollback")),
            "states": [
                [event.get("t"), event.get("state")] for event in events if event.get("ev") == "state"
            ],
            "verdicts": [event for event in events if event.get("ev") == "verdict"],
        }
    return found


def sound(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def lock_holder(path: str) -> Optional[str]:
    """What the lock file says where somebody holds the flock(2), None where it is free."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 4096, 0).decode(errors="replace") or "someone"
    finally:
        os.close(fd)
    return None


def http(port: int, path: str, body: Any = None) -> Document:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"} if data else {}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=25) as reply:
            return {"status": reply.status, "body": json.loads(reply.read() or b"null")}
    except Exception as error:  # whatever it is, it is what a client sees
        return {"status": getattr(error, "code", 0), "body": repr(error)}


def theirs(unit: str) -> Document:
    """One digest of names, types, modes, owners, links and contents of everything that is not the product's."""
    skip = {OPT, VAR, "/etc/ddtree", *dropin_paths(unit).values(), *HOST_OWN, *BY_TESTS}
    whole, count = hashlib.sha256(), 0
    for top in THEIRS:
        for folder, dirs, files in os.walk(top):
            dirs[:] = sorted(d for d in dirs if d != "__pycache__" and os.path.join(folder, d) not in skip)
            for name in sorted(files + [d for d in dirs if os.path.islink(os.path.join(folder, d))]):
                path = os.path.join(folder, name)
                if path in skip or name.startswith(".ddtree-"):  # those halves are `leftovers`
                    continue
                count += 1
                whole.update(entry(path))
    return {"digest": whole.hexdigest(), "files": count}


def entry(path: str) -> bytes:
    try:
        found = os.lstat(path)
        what = os.readlink(path) if os.path.islink(path) else sha256(path) if os.path.isfile(path) else ""
    except OSError as error:
        return f"{path} {error.errno}\n".encode()
    line = f"{path} {found.st_mode:o} {found.st_uid}:{found.st_gid} {what}\n"
    return line.encode(errors="replace")


def leftovers(state: str, unit: str) -> list[str]:
    """Halves that an interrupted write of ours left, by path."""
    found = [
        os.path.join(state, "txn", name) for name in names(os.path.join(state, "txn")) if name.startswith(".")
    ]
    folders = [state, "/etc/ddtree", f"/etc/systemd/system/{unit}.d", f"/run/systemd/system/{unit}.d"]
    for folder in folders:
        found += [os.path.join(folder, name) for name in names(folder) if name.startswith(".")]
    return found


def canaries_in(secrets: list[str]) -> list[str]:
    """Where a secret value stands that must stand nowhere (it may in a release's 0600 file in /etc/ddtree)."""
    found = []
    places = {"journal": said("journalctl", "--no-pager", "-o", "cat")}
    for top in (OPT, VAR, "/etc/systemd/system", "/run/systemd", "/run/log"):
        for folder, _, files in os.walk(top):
            for name in files:
                if not name.endswith((".journal", ".so")):
                    places[os.path.join(folder, name)] = text_of(os.path.join(folder, name)) or ""
    for pid in filter(str.isdigit, names("/proc")):
        places["argv of pid " + pid] = text_of(f"/proc/{pid}/cmdline") or ""
    for place, text in places.items():
        found += [place for value in secrets if value in text]
    return found


def main(unit: str, port: int, secrets: list[str]) -> None:
    state = os.path.join(VAR, unit)
    paths = dropin_paths(unit)
    history = (text_of(os.path.join(state, "history.jsonl")) or "").splitlines()
    document = {
        "t": time.time(),
        "host": socket.gethostname(),
        "boot": boot(),
        "service": service(unit),
        "trial": dropin(paths["trial"]),
        "kept": dropin(paths["kept"]),
        "confirmed": json_of(os.path.join(state, "confirmed")) or {"release": "baseline", "undo": None},
        "releases": {name: release(name) for name in names(os.path.join(OPT, "releases"))},
        "transactions": transactions(state),
        "history": [json.loads(line) for line in history if sound(line)],
        "torn_history": [line[:80] for line in history if line and not sound(line)],
        "lock": lock_holder(os.path.join(state, "lock")),
        "staging": names(os.path.join(OPT, "staging")),
        "opt": names(OPT),
        "leftovers": leftovers(state, unit),
        "units": said("systemctl", "list-units", "ddtree-*", "--all", "--plain", "--no-legend").splitlines(),
        "gate": [line for line in said("nft", "list", "tables").splitlines() if "ddtree" in line],
        "info": http(port, "/get_server_info"),
        "generation": http(
            port, "/generate", {"text": "the", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
        ),
        "canaries": canaries_in(secrets) if secrets else [],
        "theirs": theirs(unit),
    }
    json.dump(document, sys.stdout)
