"""Puts an engine on a lab host: the real SGLang from .venv-engine, or the stand-in."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from pathlib import Path

from . import baseline
from .overlay import mount_overlay
from .problem import LabProblem
from .proc import capture, last_line
from .spec import HostSpec
from .state import SOURCES, cache_dir, project

GUEST_ENV = "/root/ml-env"
GUEST_ENGINE = "/opt/lab-engine"
UNIT = "sglang.service"
MODELS_SCRIPT = SOURCES / "engine" / "mkmodels.py"


def install(spec: HostSpec, root: Path, host_dir: Path) -> list[str]:
    """Lay the engine of `spec` and its baseline unit into `root`; returns what systemd-nspawn must bind."""
    if spec.engine == "none":
        return []
    binds = _install_standin(root) if spec.engine == "standin" else _bind_real(host_dir)
    units = root / "etc" / "systemd" / "system"
    (units / UNIT).write_text(baseline.unit_text(spec))
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / UNIT).symlink_to(f"/etc/systemd/system/{UNIT}")
    return binds


def prepare_real() -> None:
    """Raise LabProblem unless the real engine's environment is there; makes the tiny models where they are not.

    Runs outside the supervisor, so that the operator sees what is missing at once.
    """
    environment()
    _ensure_models()


def environment() -> Path:
    """The engine's virtual environment of this project."""
    found = project() / ".venv-engine"
    if not (found / "bin" / "python3").exists():
        raise LabProblem(
            f"there is no engine environment at {found}",
            next="make engine-env in a checkout, or ddtree-ops lab up --engine standin",
        )
    return found


def models_dir() -> Path:
    """Where the models that this version of mkmodels.py makes lie: running hosts keep those they started with."""
    return cache_dir() / ("models-" + hashlib.sha256(MODELS_SCRIPT.read_bytes()).hexdigest()[:16])


def _packages(env: Path) -> tuple[Path, list[str]]:
    """site-packages of `env`, and the names in it that are SGLang's own."""
    for site in sorted(env.glob("lib/python3*/site-packages")):
        own = [
            path.name for path in site.iterdir() if path.name == "sglang" or path.match("sglang-*.dist-info")
        ]
        if len(own) == 2:
            return site, sorted(own)
    raise LabProblem(f"{env} has no sglang with its dist-info", next="make engine-env")


def _bind_real(host_dir: Path) -> list[str]:
    env = environment()
    site, own = _packages(env)
    binds = [f"--bind-ro={_quote(env)}:{GUEST_ENV}", *_interpreter_binds(env)]
    for name in own:
        # This host's own, so that a test can edit the site-packages of one host by hand.
        copy = mount_overlay(site / name, host_dir / "engine" / name)
        binds.append(f"--bind={_quote(copy)}:{GUEST_ENV}/{site.relative_to(env)}/{name}")
    binds.append(f"--bind-ro={_quote(SOURCES / 'engine')}:{GUEST_ENGINE}")
    binds.append(f"--bind-ro={_quote(models_dir())}:/models")
    return binds


def _interpreter_binds(env: Path) -> list[str]:
    """The installation that the environment's python is a link into, at the very path that the link names."""
    target = Path(os.readlink(env / "bin" / "python3"))
    if not target.is_absolute():
        target = Path(os.readlink(env / "bin" / target))
    prefixes = {target.parent.parent, target.resolve().parent.parent}
    if Path("/usr") in prefixes:
        raise LabProblem(
            f"{env} uses the system's python, which cannot be shown to a lab host in place of its own",
            next="make engine-env with a python of its own prefix (pyenv, uv, /usr/local)",
        )
    return [f"--bind-ro={_quote(prefix)}" for prefix in sorted(prefixes)]


def _quote(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace(":", "\\:")


def _ensure_models() -> None:
    models = models_dir()
    models.parent.mkdir(parents=True, exist_ok=True)
    with open(models.parent / "models.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if models.is_dir():
            return
        part = models.with_name(models.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        words = [str(environment() / "bin" / "python3"), str(MODELS_SCRIPT), str(part)]
        status, said = capture(words)
        if status:
            raise LabProblem(f"the tiny models were not made: {last_line(said)}", next=" ".join(words))
        part.rename(models)


def _install_standin(root: Path) -> list[str]:
    script = SOURCES / "standin" / "install.py"
    pairs = [word for pair in baseline.MODELS.values() for word in ("--pair", *pair)]
    words = [sys.executable, str(script), str(root), *pairs]
    status, said = capture(words)
    if status:
        raise LabProblem(f"the stand-in was not installed: {last_line(said)}", next=" ".join(words))
    (root / baseline.SCENARIO.lstrip("/")).write_text("[]\n")
    return []
