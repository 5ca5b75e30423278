"""What each rule is for and whether a person may waive it; here for the rules that stand outside the areas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """why: what happens to a deploy without the rule. reports: public failure reports that it would have caught."""

    why: str
    reports: tuple[str, ...] = ()
    waivable: bool = True
    area: str = "host"
    gpu: bool = False


def _firm(why: str, reports: tuple[str, ...] = (), area: str = "host") -> About:
    """Without what this rule asks for a deploy cannot work or cannot be undone: nobody may waive it."""
    return About(why, reports, waivable=False, area=area)


#: rule → what it is for, in the order in which a person reads them.
CORE: dict[str, About] = {
    "reachable": _firm("Nothing is known of a host that does not answer."),
    "requires": _firm(
        "Clients of this service rely on a feature that the mode takes away: they would get errors, or answers "
        "without it. What they rely on is the list `requires:` in hosts.yaml.",
        area="unit",
    ),
    "root": _firm(
        "Units, releases and the guard that brings the old service back are written by root alone."
    ),
    "systemd": _firm(
        "The rollout and its guard are units of systemd, and the agent is Python: where systemd is not PID 1 or "
        "python3 is too old, nothing would bring the old service back."
    ),
    "unit": _firm(
        "A masked unit does not start, and one that changed on disk without a daemon-reload is not the one that "
        "was read: the restart would run something that nobody looked at.",
        area="unit",
    ),
    "hold": _firm("Somebody keeps deploys off this host, and says why; `unhold` lifts that.", area="state"),
    "transaction": _firm("Two rollouts at once on one service would undo each other.", area="state"),
    "dropins": _firm(
        "A drop-in that sorts after ours and sets the same thing wins: the server would start without the release, "
        "and the change would look deployed.",
        area="unit",
    ),
    "user": _firm("systemd ends at once with status 217 where the unit's user does not exist.", area="unit"),
    "interpreter": _firm(
        "The release runs in the engine's own Python. Where that is missing nothing can start; where it was not "
        "found, nothing else about the engine can be checked.",
        area="engine",
    ),
    "engine": _firm(
        "A patch series fits one release of the engine, and reaches it through PYTHONPATH: another version, or an "
        "interpreter that ignores PYTHONPATH, would run unpatched or break at the import.",
        area="engine",
    ),
    "record": _firm(
        "A release is a copy of the installed package. Files that were edited by hand or are missing would travel "
        "into it, and the old service would not be what its version says either.",
        ("F016",),
        area="engine",
    ),
    "sources": _firm(
        "A patch is applied to exactly the files that it was made for; on others it fails, or worse, fits with a "
        "shift and changes another line.",
        area="engine",
    ),
    "cuda-build": About(
        "A torch without CUDA starts on a GPU host, warns, and serves from the CPU: it looks like an endless load.",
        ("F021",),
        area="engine",
        gpu=True,
    ),
    "duplicates": About(
        "Where a package is installed twice, the order of sys.path decides which one is imported: versions that "
        "were checked are not those that run.",
        ("F015",),
        area="engine",
    ),
    "cuda-kernel": About(
        "A kernel wheel for another CUDA major than torch's cannot load its runtime: the import fails in the first "
        "seconds, after the old server was stopped.",
        ("F012", "F013", "F016"),
        area="engine",
        gpu=True,
    ),
    "cuda-companions": About(
        "torchvision, torchaudio or nvidia-* wheels of another CUDA build fail when the engine imports them, or "
        "bring a second CUDA runtime into the process.",
        ("F012",),
        area="engine",
        gpu=True,
    ),
    "flashinfer": About(
        "FlashInfer compares the versions of its parts at import and refuses to start where they differ.",
        ("F017",),
        area="engine",
        gpu=True,
    ),
    "model": About(
        "A model directory that is absent or lacks a shard is found only while weights load, minutes into the "
        "downtime.",
        area="model",
    ),
    "draft": About(
        "A mode that drafts does not start without its draft model, and finds out after the target is loaded.",
        area="model",
    ),
    "disk": _firm(
        "A release needs room for two copies of the package, on one filesystem that takes writes and lets "
        "libraries load: a rename from another one is no single step, and a full disk stops a rollout half way."
    ),
    "port": About(
        "The engine binds its port at the very end of its start: taken by a stranger, the whole load was for "
        "nothing, and health checks meanwhile ask the stranger.",
        ("F104",),
        area="unit",
    ),
    "log": About(
        "Where the service's lines go nowhere, a failed start can be seen but not explained.", area="unit"
    ),
    "facts": _firm(
        "Units are rendered from the recorded facts: where the host differs from them, the plan that somebody "
        "read is not what would happen. `deploy --adopt` takes the host over as it is.",
        area="state",
    ),
    "drift": _firm(
        "Somebody changed the host since the last confirm: a deploy would overwrite that unseen. "
        "`deploy --adopt` takes the host over as it is.",
        area="state",
    ),
}
