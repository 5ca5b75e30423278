"""Runs in the unit's sandbox as its user: its proxies, its own name, and whether it may bind the server's address."""

import errno
import os
import socket
from typing import Any, Dict, List, Optional


def collect(argument: Dict[str, Any]) -> Dict[str, Any]:
    """{proxies, hostname, addresses, local, bind}; argument: {host, port}. No proxy's address is told: it may hold a
    password."""
    name = socket.gethostname()
    addresses = _addresses(name)
    return {
        "proxies": proxies(dict(os.environ)),
        "hostname": name,
        "addresses": addresses,
        "local": None if not addresses else any(_bindable(a) for a in addresses),
        "bind": _bind(argument.get("host") or "127.0.0.1", int(argument.get("port") or 0)),
    }


def proxies(env: Dict[str, str]) -> Dict[str, Any]:
    """{http, names: variables that are set, no_proxy: [host]}, as Python's urllib and requests read them: the lower
    case name wins, an empty one switches off."""
    found: Dict[str, str] = {}
    for kind in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        value = env.get(kind, env.get(kind.upper(), ""))
        if value.strip():
            found[kind] = value
    hosts = [part.strip() for part in found.get("no_proxy", "").replace(",", " ").split() if part.strip()]
    return {
        "http": "http_proxy" in found or "all_proxy" in found,
        "names": sorted(name for name in found if name != "no_proxy"),
        "no_proxy": [host.rpartition("@")[2] for host in hosts],
    }


def _addresses(name: str) -> List[str]:
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def _bindable(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


def _bind(host: str, port: int) -> Optional[Dict[str, Any]]:
    """{host, port, error}: binding without listening; a port that is in use is no error, another rule says whose."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return {"host": host, "port": port, "error": str(error)}
    family, kind, proto, _, address = infos[0]
    with socket.socket(family, kind, proto) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
        except OSError as error:
            mine = error.errno == errno.EADDRINUSE
            return {"host": host, "port": port, "error": None if mine else error.strerror}
    return {"host": host, "port": port, "error": None}
