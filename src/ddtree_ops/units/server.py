"""Finds the engine's server within an argument list: what starts it, what runs before it, what cannot be adopted."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[0-9.]*(?:-[a-z]+)?")
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh")
_MODULES = frozenset({"sglang.launch_server", "sglang.srt.entrypoints.http_server", "sglang"})
_CONTAINERS = frozenset(
    {"docker", "podman", "nerdctl", "apptainer", "singularity", "docker-compose", "kubectl"}
)
_REFUSED = {
    "sudo": "sudo drops the environment", "su": "su starts a login of its own", "runuser": "runuser starts a session",
    "ssh": "the server runs on another host", "srun": "the server runs under Slurm", "tmux": "tmux detaches it",
    "screen": "screen detaches it", "systemd-run": "the server runs in another unit", "torchrun": "torchrun starts it",
    "chroot": "the server sees another root", "nsenter": "the server runs in other namespaces",
    "mpirun": "mpirun starts it", "accelerate": "accelerate starts it", "machinectl": "it runs elsewhere",
}  # fmt: skip
# Launchers that execute what follows them: options that take a value are named, to step over them.
_LAUNCHERS: dict[str, frozenset[str]] = {
    "env": frozenset({"-u", "--unset", "-C", "--chdir"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "ionice": frozenset({"-c", "-n", "--class", "--classdata"}),
    "numactl": frozenset(
        {
            "-i",
            "-m",
            "-N",
            "-C",
            "-p",
            "--interleave",
            "--membind",
            "--cpunodebind",
            "--physcpubind",
            "--preferred",
        }
    ),
    "taskset": frozenset(),
    "chrt": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "setsid": frozenset(),
    "nohup": frozenset(),
    "time": frozenset({"-f", "-o"}),
    "tini": frozenset({"-p", "-e"}),
    "dumb-init": frozenset(),
    "prlimit": frozenset(),
    "exec": frozenset({"-a"}),
    "command": frozenset(),
    "conda": frozenset({"-n", "--name", "-p", "--prefix", "--cwd"}),
    "mamba": frozenset({"-n", "--name", "-p", "--prefix", "--cwd"}),
    "micromamba": frozenset({"-n", "--name", "-p", "--prefix", "--cwd"}),
    "catatonit": frozenset(),
    "flock": frozenset({"-E", "--conflict-exit-code", "-w", "--timeout", "--wait"}),
    "timeout": frozenset({"-k", "-s", "--kill-after", "--signal"}),
    "setpriv": frozenset({"--reuid", "--regid", "--groups", "--inh-caps", "--bounding-set"}),
    "cgexec": frozenset({"-g"}),
    "unbuffer": frozenset(),
    "systemd-inhibit": frozenset(),
    "systemd-cat": frozenset({"-t", "-p", "--identifier", "--priority"}),
    "poetry": frozenset({"-C", "--directory"}),
    "pipenv": frozenset(),
    "pixi": frozenset({"-e", "--environment", "--manifest-path"}),
    "uv": frozenset({"--project", "--directory", "--python", "-p", "--with", "--extra", "--env-file"}),
}
_POSITIONALS = {"taskset": 1, "chrt": 1, "flock": 1, "timeout": 1}
_SUBCOMMANDS = {
    "conda": "run",
    "mamba": "run",
    "micromamba": "run",
    "uv": "run",
    "poetry": "run",
    "pipenv": "run",
    "pixi": "run",
}
_PYTHON_VALUES = frozenset({"-W", "-X", "--check-hash-based-pycs"})


class NotAdoptable(ValueError):
    """Why this command line cannot be adopted, in a clause."""


@dataclass(frozen=True)
class Found:
    """Where the server starts: argv[start:] is the interpreter or `sglang`, argv[flags:] its own arguments."""

    start: int
    flags: int


def locate(argv: list[str]) -> Found | None:
    """Return where the server starts in `argv`, None where it starts something else.

    Raises NotAdoptable for containers and for programs that detach or replace the environment.
    """
    at = 0
    while at < len(argv):
        name = argv[at].rpartition("/")[2]
        if _PYTHON.fullmatch(argv[at]) or name == "sglang":
            flags = _server_flags(argv, at)
            return Found(at, flags) if flags is not None else None
        if name in _CONTAINERS:
            raise NotAdoptable(f"the server runs in a container ({name}): its files are not the host's")
        if name in _REFUSED:
            raise NotAdoptable(f"started through {name}: {_REFUSED[name]}")
        if name not in _LAUNCHERS:
            following = argv[at + 1 : at + 13]
            if name and not _SHELL.fullmatch(argv[at]) and "-m" in following and _MODULES & set(following):
                raise NotAdoptable(f"started through {name}, which this program does not know")
            return None
        at = _step_over(argv, at, name)
    return None


def _step_over(argv: list[str], at: int, name: str) -> int:
    """Return the index of the command that the launcher at `at` starts."""
    options = _LAUNCHERS[name]
    at += 1
    if name in _SUBCOMMANDS:
        if at >= len(argv) or argv[at] != _SUBCOMMANDS[name]:
            return len(argv)
        at += 1
    positionals = _POSITIONALS.get(name, 0)
    while at < len(argv):
        word = argv[at]
        if name == "env" and (word in ("-S", "--split-string") or word.startswith(("-S", "--split-string="))):
            raise NotAdoptable("env -S splits a text of its own")
        if word == "--":
            at += 1
            break
        if word.startswith("-") and len(word) > 1:
            if name == "taskset" and word in ("-c", "-ac", "--cpu-list"):
                positionals = 1
            at += 2 if word in options else 1
        elif name == "env" and "=" in word:
            at += 1
        elif positionals:
            positionals -= 1
            at += 1
        else:
            break
    return at


def _server_flags(argv: list[str], at: int) -> int | None:
    """Return where the server's own arguments begin, None where this Python runs something else."""
    if argv[at].rpartition("/")[2] == "sglang":
        return at + 2 if argv[at + 1 : at + 2] == ["serve"] else None
    here = at + 1
    while here < len(argv) and argv[here].startswith("-"):
        word = argv[here]
        if word in _PYTHON_VALUES:
            here += 2
            continue
        if word.startswith("-c"):
            return None
        if re.fullmatch(r"-[a-zA-Z]*m", word):
            return _module_flags(argv, here + 1)
        if match := re.fullmatch(r"-[a-zA-Z]*?m(sglang.*)", word):
            return _module_flags([*argv[:here], match[1], *argv[here + 1 :]], here)
        here += 1
    if here < len(argv):
        if re.search(r"(?:^|/)sglang/launch_server\.py$", argv[here]):
            return here + 1
        if argv[here].rpartition("/")[2] == "sglang" and argv[here + 1 : here + 2] == ["serve"]:
            return here + 2
    return None


def _module_flags(argv: list[str], at: int) -> int | None:
    if at >= len(argv) or argv[at] not in _MODULES:
        return None
    if argv[at] == "sglang":
        return at + 2 if argv[at + 1 : at + 2] == ["serve"] else None
    return at + 1


def python_switches(argv: list[str]) -> list[str]:
    """Return the interpreter's own switches of a server argv (`-u`, `-E` …), for the check of what they ignore."""
    out: list[str] = []
    for word in argv[1:]:
        if not word.startswith("-") or word == "-m":
            break
        out.append(word)
    return out


def past_launchers(argv: list[str]) -> int:
    """Return the index of the first word that is no launcher: `/usr/bin/env bash …` → 1. Raises NotAdoptable."""
    at = 0
    while at < len(argv) and argv[at].rpartition("/")[2] in _LAUNCHERS:
        at = _step_over(argv, at, argv[at].rpartition("/")[2])
    return at


def shell_script(argv: list[str]) -> tuple[int, str] | None:
    """Return (index of the script text, shell options) where `argv` is `bash -c TEXT …`, else None."""
    at = past_launchers(argv)
    if at >= len(argv) or not _SHELL.fullmatch(argv[at]):
        return None
    options = ""
    at += 1
    while at < len(argv) and argv[at][:1] in "-+" and len(argv[at]) > 1:
        word = argv[at]
        if word in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
            at += 2
            continue
        at += 1
        if word == "--login":
            options += "l"
        elif not word.startswith("--"):
            options += word[1:]
            if word.endswith("o") and "c" not in word[-1]:
                at += 1
        if word in ("-", "--"):
            break
    return (at, options) if "c" in options and at < len(argv) else None


def script_path(argv: list[str], scripts: dict[str, str]) -> tuple[int, str] | None:
    """Return (index, path) of the wrapper script that `argv` runs: itself, or the first argument of a shell."""
    at = past_launchers(argv)
    if at < len(argv) and argv[at] in scripts:
        return at, argv[at]
    if at < len(argv) and _SHELL.fullmatch(argv[at]):
        for here in range(at + 1, len(argv)):
            if argv[here] in scripts:
                return here, argv[here]
            if not argv[here].startswith("-"):
                return None
    return None
