"""Changes one line of the agent for one test: how a safeguard is taken away."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

#: A function of the agent, what it says once, and what it shall say instead.
Mutation = tuple[Callable[..., Any], str, str]


def mutate(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    """Change one line of a function of the agent, wherever it has been imported to."""
    function, old, new = mutation
    source = textwrap.dedent(inspect.getsource(function))
    source = "\n".join(line for line in source.split("\n") if not line.startswith("@"))
    assert source.count(old) == 1, f"{function.__qualname__} does not say {old!r} once any more"
    made: dict[str, Any] = {}
    exec(compile(source.replace(old, new), function.__code__.co_filename, "exec"), function.__globals__, made)
    monkeypatch.setattr(function, "__code__", made[function.__name__].__code__)
