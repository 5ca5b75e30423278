"""Reading the engine's own server info: a value, wherever it stands, against the planned one.

Pure, standard library only: built verbatim into the host agent.
"""

from typing import Any, Mapping

_ABSENT = object()


def told(info: Mapping[str, Any], key: str) -> Any:
    """A value of server info: at the top, or in the scheduler's own part."""
    if key in info and info[key] is not None:
        return info[key]
    states = info.get("internal_states")
    if isinstance(states, list) and states and isinstance(states[0], dict) and key in states[0]:
        return states[0][key]
    return info.get(key, _ABSENT)


def same(said: Any, planned: Any) -> bool:
    if isinstance(planned, bool) or planned is None:
        return said is planned
    return said is not _ABSENT and str(said) == str(planned)


def shown(value: Any) -> str:
    return "absent" if value is _ABSENT else str(value)
