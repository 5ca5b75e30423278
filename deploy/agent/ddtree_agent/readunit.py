"""What adopting a unit needs: its files verbatim and the facts beside them (protocol section 2)."""

import os
from typing import Any, Dict, List, Optional

from . import probe, probe_host, probe_unit, systemd, unitenv
from .store import file_digest
from .wire import AgentError

SCRIPT_LIMIT = 64 * 1024


def read_unit(request: Dict[str, Any]) -> Dict[str, Any]:
    """Read a service for adoption: {raw, engine, capabilities, model}.

    request: as for probe.probe(). raw: {fragment: {path, text, sha256} | null, dropins: […] (the operator's),
    environment_files: [{path, text | null, sha256 | null, optional, secret: true}], scripts: {path: text},
    enabled, show: {property: value}, specifiers: {letter: value}}. The texts may hold secrets: the controller
    keeps them in memory only. Raises AgentError(precondition) where systemd does not answer.
    """
    name = request.get("service") or "sglang.service"
    show = systemd.show(name, probe_unit.properties())
    if not show:
        raise AgentError("precondition", f"systemctl show {name} gave no answer", next="ddtree-ops doctor")
    facts = probe.probe(request)
    return {
        "raw": raw_unit(show),
        "engine": {k: v for k, v in facts["engine"].items() if k not in ("files", "ms")},
        "launch": facts["launch"],
        "capabilities": {k: v for k, v in facts["capabilities"].items() if k != "ms"},
        "model": {
            k: facts["model"].get(k) for k in ("target_hybrid", "context_length", "block_size", "error")
        },
        "service": facts["service"],
    }


def raw_unit(show: Dict[str, str]) -> Dict[str, Any]:
    """The unit's own files, ours left out."""
    fragment = show.get("FragmentPath")
    return {
        "fragment": _text(fragment) if fragment else None,
        "dropins": [_text(p) for p in show.get("DropInPaths", "").split() if not probe_unit.ours(p)],
        "environment_files": [
            dict(_text(str(item["path"])), optional=item["optional"], secret=True)
            for item in probe_unit.environment_files(show)
        ],
        "scripts": scripts(unitenv.exec_argv(show.get("ExecStart", ""))),
        "enabled": show.get("UnitFileState", ""),
        "show": show,
        "specifiers": probe_host.specifiers(),
    }


def scripts(argv: List[str]) -> Dict[str, str]:
    """{path: text} of the small text scripts among a command line's first words (a wrapper)."""
    found: Dict[str, str] = {}
    for word in argv[:3]:
        if not os.path.isabs(word) or not os.path.isfile(word) or os.path.getsize(word) > SCRIPT_LIMIT:
            continue
        with open(word, "rb") as file:
            raw = file.read()
        if raw.startswith(b"#!") and b"\0" not in raw:
            found[word] = raw.decode("utf-8", "replace")
    return found


def _text(path: str) -> Dict[str, Any]:
    digest: Optional[str] = None
    text: Optional[str] = None
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8", "surrogateescape")
        digest = file_digest(path)
    except OSError:
        pass
    return {"path": path, "text": text, "sha256": digest}
