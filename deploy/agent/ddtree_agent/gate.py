"""The traffic gate: while a release is on trial its port answers only us and the service itself (an nft table of our
own, one for each service)."""

import hashlib
import os
import pwd
import shutil
import socket
from typing import List, Optional, Tuple

from .systemd import run, show
from .wire import AgentError

_FAMILY = "inet"
_PREFIX = "ddtree_gate_"
#: NFT_TABLE_MAXNAMELEN of linux/netfilter/nf_tables.h is 256; a longer name is told by its hash.
_NAME_MAX = 128
_NFT_S = 5.0
_TRIES = 3
_MISSING = 127
#: ENOENT as nft prints it in the C locale.
_ABSENT = "No such file or directory"
_CONNECT_S = 2.0
#: `nobody` here and in every user namespace that has 16 bits of users: never the owner of a service of ours.
_STRANGER = 65534
#: Users that systemd makes up for DynamicUser=, known only after the start (systemd.exec(5)).
_DYNAMIC = "61184-65519"
_OPEN, _REFUSED = 3, 4
_SBIN = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"


def table_of(unit: str) -> str:
    """The name of a service's table: an identifier of nft(8), different for different units."""
    stem = unit[: -len(".service")] if unit.endswith(".service") else unit
    name = _PREFIX + "".join(c if c.isascii() and c.isalnum() else _escaped(c) for c in stem)
    if len(name) <= _NAME_MAX:
        return name
    # "_h" begins no escape, so that no other unit is called so.
    return _PREFIX + "_h" + hashlib.sha256(unit.encode()).hexdigest()


def ruleset(table: str, port: int, users: str) -> str:
    """What `nft -f -` loads in one step, in place of a gate that may be there. `users`: uids, comma-separated.

    Every packet to the port is met, not the first one of a connection alone: what conntrack knows does not matter.
    """
    return (
        f"table {_FAMILY} {table} {{}}\n"
        f"delete table {_FAMILY} {table}\n"
        f"table {_FAMILY} {table} {{\n"
        "  chain outside {\n"
        "    type filter hook input priority -300; policy accept;\n"
        f'    iif != "lo" tcp dport {int(port)} reject with tcp reset\n'
        "  }\n"
        "  chain local {\n"
        "    type filter hook output priority -300; policy accept;\n"
        f'    oif "lo" tcp dport {int(port)} meta skuid != {{ {users} }} reject with tcp reset\n'
        "  }\n"
        "}\n"
    )


def shut(unit: str, port: int) -> None:
    """From here on the port answers root and the unit's own user, on this host, and nobody else.

    Raises AgentError where nft refuses: the release must not be started then.
    """
    problem = _load(ruleset(table_of(unit), port, _users(unit)))
    if problem is not None:
        raise AgentError(
            "rolled-back",
            f"the traffic gate of port {port} could not be shut",
            evidence=problem,
            meaning="the release was not started: users could have reached it before its gates pass",
            next="ddtree-ops doctor --record, to take in what nft can do on this host now",
        )


def open_(unit: str) -> Optional[str]:
    """Take the gate away; None where there is none (any more), else why it may still be there. Never raises."""
    said = ""
    for _ in range(_TRIES):
        status, said = _nft(["delete", "table", _FAMILY, table_of(unit)])
        # without nft nothing of ours can be there
        if status in (0, _MISSING) or _ABSENT in said:
            return None
    return said


def there(unit: str) -> bool:
    """Whether this service has a gate now."""
    return _nft(["list", "table", _FAMILY, table_of(unit)])[0] == 0


def works() -> Optional[bool]:
    """Whether a gate holds here: loads a real one before a port of our own and knocks as root and as a stranger.

    None where that cannot be told (not root, or nft gave no answer).
    """
    if os.geteuid() != 0:
        return None
    unit = f"probe-{os.getpid()}"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = int(listener.getsockname()[1])
        try:
            if _load(ruleset(table_of(unit), port, "0")) is not None:
                return False
            return _connects(port) and not _stranger_connects(port)
        except OSError:
            return None
        finally:
            open_(unit)


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), _CONNECT_S).close()
    except OSError:
        return False
    return True


def _stranger_connects(port: int) -> bool:
    child = os.fork()  # without an exec: a stranger may not even be allowed to run our interpreter
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(_STRANGER)
            os.setuid(_STRANGER)
            os._exit(_OPEN if _connects(port) else _REFUSED)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (_OPEN, _REFUSED):
        raise OSError("no other user could be taken on")
    return status == _OPEN


def _users(unit: str) -> str:
    """Root, whose our probes are, and the unit's own user: the engine warms itself up over its own port."""
    shown = show(unit, ["User", "DynamicUser"])
    name = shown.get("User", "")
    try:
        uid = int(name) if name.isdigit() else pwd.getpwnam(name or "root").pw_uid
    except KeyError:
        uid = 0  # made up at the start, or the start fails by itself
    if uid == 0 and shown.get("DynamicUser") == "yes":
        return f"0, {_DYNAMIC}"
    return f"0, {uid}" if uid else "0"


def _load(rules: str) -> Optional[str]:
    status, said = _nft(["-f", "-"], rules)
    return None if status == 0 else said


def _nft(args: List[str], rules: str = "") -> Tuple[int, str]:
    program = shutil.which("nft", path=_SBIN)
    if program is None:
        return _MISSING, "nft is not installed"
    status, out, err = run([program, *args], _NFT_S, rules.encode())
    return status, (err or out).strip() or f"nft ended with status {status}"


def _escaped(char: str) -> str:
    return "".join(f"_{byte:02x}" for byte in char.encode())
