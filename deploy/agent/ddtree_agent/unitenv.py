"""The environment and command line of a unit, as far as the probe needs them to find the engine.

Rough on purpose: the controller reads units by systemd's rules (units.adopt); here only the interpreter, its
flags and the variables that decide what it imports are looked for.
"""

import os
import re
import shlex
from typing import Dict, List, Optional

from .layout import OPT, RUNTIMES

_PYTHON = re.compile(r"(^|/)python[0-9.]*$")
_SHELL = re.compile(r"(^|/)(ba|da|z|k)?sh$")


class Launch:
    """A server's command line taken apart: `interpreter`, its `flags`, the server's `args`.

    path0: what the interpreter puts first on sys.path: "cwd" under -m, else the directory of the script.
    """

    def __init__(self, interpreter: str, flags: List[str], path0: str, args: List[str]) -> None:
        self.interpreter, self.flags, self.path0, self.args = interpreter, flags, path0, args

    def value(self, *names: str) -> Optional[str]:
        """The last value of a flag, in either spelling (`--x v`, `--x=v`); None where it is absent."""
        found = None
        for i, arg in enumerate(self.args):
            name, sep, value = arg.partition("=")
            if name in names:
                found = value if sep else (self.args[i + 1] if i + 1 < len(self.args) else None)
        return found


def split_launch(argv: List[str]) -> Optional[Launch]:
    """Take a server's argv apart; None where no Python program is found in it.

    Understands `python [flags] -m module …`, `python script …`, a console script (`sglang serve …`, by its
    #! line), and roughly the same inside `bash -c '…'` and inside a small wrapper script.
    """
    if len(argv) > 2 and _SHELL.search(argv[0]) and "c" in argv[1].lstrip("-"):
        return _in_shell(" ".join(argv[2:]))
    for i, word in enumerate(argv):
        if _PYTHON.search(word):
            return _python(word, argv[i + 1 :])
        if os.path.basename(word) == "sglang" and argv[i + 1 : i + 2] == ["serve"]:
            return _console(word, argv[i + 2 :])
    return _in_file(argv[0]) if argv else None


def exec_argv(shown: str) -> List[str]:
    """argv of the last command of `systemctl show -p ExecStart`, split at blanks (quoting is lost there)."""
    commands = re.findall(r"argv\[\]=(.*?) ; ignore_errors=", shown)
    return commands[-1].split() if commands else []


def shown_environment(shown: str) -> Dict[str, str]:
    """Variables of `systemctl show -p Environment`: blank-separated, shell-quoted where a value needs it."""
    found: Dict[str, str] = {}
    for word in re.findall(r"(?:[^\s\"']|\"(?:\\.|[^\"])*\"|'[^']*'|\$'(?:\\.|[^'])*')+", shown):
        if word[:1] == '"':
            word = re.sub(r'\\(["\\$`])', r"\1", word[1:-1])
        elif word[:2] == "$'":
            word = (
                word[2:-1]
                .encode("utf-8")
                .decode("unicode_escape")
                .encode("latin-1")
                .decode("utf-8", "replace")
            )
        name, sep, value = word.partition("=")
        if sep:
            found[name] = value
    return found


def environment_files(shown: str) -> List[Dict[str, object]]:
    """`systemctl show -p EnvironmentFiles` as [{path, optional}]."""
    found: List[Dict[str, object]] = []
    for path, flag in re.findall(r"(/.*?) \(ignore_errors=(yes|no)\)", shown):
        found.append({"path": path, "optional": flag == "yes"})
    return found


def read_environment_file(text: str) -> Dict[str, str]:
    """Variables of an EnvironmentFile= (systemd.exec(5)): comments, quotes, continuations."""
    found: Dict[str, str] = {}
    for line in text.replace("\\\n", "").splitlines():
        line = line.strip()
        name, sep, value = line.partition("=")
        if not sep or line[0] in "#;":
            continue
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name.strip()] = value
    return found


def unit_environment(show: Dict[str, str]) -> Dict[str, str]:
    """What the unit's process gets from Environment= and EnvironmentFile= (files win, systemd.exec(5)).

    Holds secrets: never send it anywhere.
    """
    env = shown_environment(show.get("Environment", ""))
    for item in environment_files(show.get("EnvironmentFiles", "")):
        try:
            with open(str(item["path"]), encoding="utf-8", errors="replace") as file:
                env.update(read_environment_file(file.read()))
        except OSError:
            continue
    return env


def with_runtime(show: Dict[str, str], runtime: Optional[str]) -> Dict[str, str]:
    """The unit's properties with PYTHONPATH as a release on `runtime` (a site directory of ours, None for none) has it:
    the overlays of releases, then the runtime, then the host's own."""
    paths = shown_environment(show.get("Environment", "")).get("PYTHONPATH", "").split(os.pathsep)
    paths = [path for path in paths if path and not path.startswith(RUNTIMES + "/")]
    overlays = [path for path in paths if path.startswith(OPT + "/")]
    now = [*overlays, *([runtime] if runtime else []), *(path for path in paths if path not in overlays)]
    word = "PYTHONPATH=" + os.pathsep.join(now)
    quoted = '"' + re.sub(r'(["\\$`])', r"\\\1", word) + '"'
    return dict(show, Environment=(show.get("Environment", "") + " " + quoted).strip()) if now else show


def without_ours(pythonpath: str) -> str:
    """PYTHONPATH without the overlays and runtimes of our own releases: what the base engine is found with."""
    return os.pathsep.join(
        p for p in pythonpath.split(os.pathsep) if p and not (p + "/").startswith(OPT + "/")
    )


def _python(interpreter: str, rest: List[str]) -> Optional[Launch]:
    flags: List[str] = []
    words = list(rest)
    while words:
        word = words.pop(0)
        if word in ("-m", "-c"):
            return Launch(interpreter, flags, "cwd", _server_args(words[1:]))
        if word in ("-X", "-W"):
            flags += [word, words.pop(0)] if words else [word]
        elif word.startswith("-"):
            if word.endswith("m") and not word.startswith("--"):  # -Em module
                return Launch(interpreter, [*flags, word[:-1]], "cwd", _server_args(words[1:]))
            flags.append(word)
        else:
            return Launch(interpreter, flags, os.path.dirname(os.path.realpath(word)), _server_args(words))
    return None


def _server_args(words: List[str]) -> List[str]:
    return words[1:] if words[:1] == ["serve"] else words


def _console(path: str, args: List[str]) -> Optional[Launch]:
    try:
        with open(path, "rb") as file:
            first = file.readline(4096).decode("utf-8", "replace")
    except OSError:
        return None
    words = first[2:].split() if first.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
    if not words or not _PYTHON.search(words[0]):
        return None
    return Launch(words[0], words[1:], os.path.dirname(os.path.realpath(path)), args)


def _in_file(path: str) -> Optional[Launch]:
    """The server command inside a small wrapper script; None where it is none."""
    try:
        with open(path, "rb") as file:
            raw = file.read(64 * 1024)
    except OSError:
        return None
    return _in_shell(raw.decode("utf-8", "replace")) if raw.startswith(b"#!") else None


def _in_shell(script: str) -> Optional[Launch]:
    for line in script.replace("\\\n", " ").splitlines():
        if "sglang" not in line or line.lstrip().startswith("#"):
            continue
        for command in re.split(r"&&|\|\||[;|]", line):
            try:
                words = shlex.split(command)
            except ValueError:
                words = command.split()
            for i, word in enumerate(words):
                if _PYTHON.search(word) or (
                    os.path.basename(word) == "sglang" and words[i + 1 : i + 2] == ["serve"]
                ):
                    return split_launch(words[i:])
    return None
