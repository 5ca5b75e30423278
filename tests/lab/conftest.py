"""Real hosts for tests: a lab for the session, and factories of fresh hosts in it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "deploy" / "lab"))

from ddtree_lab import engine  # noqa: E402
from ddtree_lab.client import Lab, LabHost, check_machine  # noqa: E402
from ddtree_lab.problem import LabProblem  # noqa: E402
from ddtree_lab.spec import HostSpec  # noqa: E402
from ddtree_lab.state import State, own_directory  # noqa: E402

LABS = CHECKOUT / ".lab-test"
NewHost = Callable[..., LabHost]
_numbers = itertools.count(1)


def cannot(problem: LabProblem) -> None:
    """Skip with one sentence; in CI, where a lab test that does not run is a hole, fail with it."""
    sentence = problem.what + (f" ({problem.next})" if problem.next else "")
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


def _remove_labs_of_dead_sessions() -> None:
    for left in LABS.glob("session-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            Lab(State.at(left)).down()
            shutil.rmtree(left)


@contextmanager
def _temporary_lab(name: str) -> Iterator[Lab]:
    """A lab of its own that is up and has no host; gone with all its files at the end."""
    try:
        check_machine()
        own_directory(LABS)
        lab = Lab(State.at(LABS / name))
        lab.up()
    except LabProblem as problem:
        cannot(problem)
    yield lab
    lab.down()
    shutil.rmtree(lab.state.root)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The session's lab, without a host yet."""
    _remove_labs_of_dead_sessions()
    with _temporary_lab(f"session-{os.getpid()}") as up:
        yield up


@pytest.fixture
def spare_lab(lab: Lab) -> Iterator[Lab]:
    """A second lab beside the session's, for tests that kill or end it."""
    with _temporary_lab(f"session-{os.getpid()}-{next(_numbers)}") as up:
        yield up


@contextmanager
def _factory(lab: Lab) -> Iterator[NewHost]:
    made: list[LabHost] = []

    def new(name: str | None = None, **spec: Any) -> LabHost:
        host = lab.host(name or f"t{next(_numbers)}")
        lab.add(HostSpec(host.name, **spec))
        made.append(host)
        return host

    yield new
    if lab.alive:
        there = lab.status()
        for host in made:
            if host.name in there:
                lab.remove(host.name)


@pytest.fixture
def new_host(lab: Lab) -> Iterator[NewHost]:
    """new_host(name=None, **spec) -> LabHost: a fresh host without an engine, in half a second."""
    with _factory(lab) as new:
        yield new


@contextmanager
def _standins(lab: Lab) -> Iterator[NewHost]:
    with _factory(lab) as new:

        def standin(
            name: str | None = None, scenario: dict[str, Any] | None = None, serving: bool = True, **spec: Any
        ) -> LabHost:
            host = new(name, engine="standin", **spec)
            if scenario is not None:
                host.write("/etc/standin.json", json.dumps(scenario))
                host.check(["systemctl", "restart", engine.UNIT])
            if serving:
                host.wait_http(limit_s=30)
            return host

        yield standin


@pytest.fixture
def standin_host(lab: Lab) -> Iterator[NewHost]:
    """standin_host(name=None, scenario=None, serving=True, baseline=, pair=, tp=) -> LabHost with the stand-in.

    `scenario` is what /etc/standin.json holds before the service starts; with `serving` it waits for /health.
    """
    with _standins(lab) as new:
        yield new


@pytest.fixture(scope="module")
def module_standin_host(lab: Lab) -> Iterator[NewHost]:
    """As standin_host, for hosts that all tests of a module share."""
    with _standins(lab) as new:
        yield new


@pytest.fixture(scope="module")
def engine_host(lab: Lab) -> Iterator[NewHost]:
    """engine_host(name=None, serving=True, baseline=, pair=, tp=) -> LabHost with the real engine (15 s and up).

    The hosts live until the module ends: tests that leave one as they found it can share it.
    """
    try:
        engine.prepare_real()
    except LabProblem as problem:
        cannot(problem)
    with _factory(lab) as new:

        def real(name: str | None = None, serving: bool = True, **spec: Any) -> LabHost:
            host = new(name, engine="real", **spec)
            if serving:
                host.wait_http(limit_s=180)
            return host

        yield real
