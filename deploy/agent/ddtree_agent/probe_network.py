"""Facts about the ports that the server will take beside its own, and the proxies of the one that runs now."""

from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import inner_network, probe_unit, sockets

if TYPE_CHECKING:
    from .probe_areas import Context

#: What SGLang adds to --port for its own TCP channels under DP attention (server_args.py, PortArgs).
_DP_DELTA, _DP_COUNT = 233, 6


def collect(context: "Context") -> Dict[str, Any]:
    """{host, port, ports: [{flag, port, owners, unknown}], ephemeral, reserved, unprivileged, running}."""
    group = context.show.get("ControlGroup", "")
    host, port = address(context)
    return {
        "host": host,
        "port": port,
        "ports": [_owned(flag, number, group) for flag, number in planned(context, port)],
        "ephemeral": _pair(_text("/proc/sys/net/ipv4/ip_local_port_range")),
        "reserved": _text("/proc/sys/net/ipv4/ip_local_reserved_ports").strip(),
        "unprivileged": _number(_text("/proc/sys/net/ipv4/ip_unprivileged_port_start").strip()),
        "running": running(context.show.get("MainPID", "0")),
    }


def inside(context: "Context") -> Dict[str, Any]:
    """The argument of inner_network."""
    host, port = address(context)
    return {"host": host, "port": port}


def address(context: "Context") -> "Any":
    """(host, port) that the server is told to listen on."""
    flag = context.launch.value if context.launch else lambda *names: None
    port = context.request.get("port") or _number(flag("--port") or "") or 30000
    return flag("--host") or "127.0.0.1", int(port)


def planned(context: "Context", port: int) -> "List[Any]":
    """[(flag, port)] of every port that the command line decides; random ones are nobody's plan."""
    launch = context.launch
    if launch is None:
        return [("--port", port)]
    found = [("--port", port)]
    for name in (
        "--nccl-port",
        "--grpc-http-sidecar-port",
        "--engine-info-bootstrap-port",
        "--metrics-http-port",
    ):
        number = _number(launch.value(name) or "")
        if number:
            found.append((name, number))
    if launch.value("--disaggregation-mode") in ("prefill", "decode"):
        found.append(
            (
                "--disaggregation-bootstrap-port",
                _number(launch.value("--disaggregation-bootstrap-port") or "") or 8998,
            )
        )
    init = _number((launch.value("--dist-init-addr", "--nccl-init-addr") or "").rpartition(":")[2])
    if init:
        found.append(("--dist-init-addr", init))
    if "--enable-dp-attention" in launch.args:
        first = init or port + _DP_DELTA
        found += [("--enable-dp-attention", first + i) for i in range(1 if init else 0, _DP_COUNT)]
    return found


def running(main_pid: str) -> Optional[Dict[str, Any]]:
    """The proxies of the process that serves now (a wrapper script may have set them); null where none runs."""
    try:
        with open(f"/proc/{int(main_pid)}/environ", "rb") as file:
            raw = file.read().decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    env = dict(pair.partition("=")[::2] for pair in raw.split("\0") if "=" in pair)
    return inner_network.proxies(env)


def _owned(flag: str, port: int, group: str) -> Dict[str, Any]:
    if not sockets.listening(port):
        return {"flag": flag, "port": port, "owners": [], "unknown": 0}
    return {"flag": flag, **probe_unit.listeners(port, group)}


def _pair(text: str) -> Optional[List[int]]:
    parts = text.split()
    return [int(parts[0]), int(parts[1])] if len(parts) == 2 and all(p.isdigit() for p in parts) else None


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
