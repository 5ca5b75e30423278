"""The downtime that a plan states: from this host's own starts, and what max_downtime makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from ddtree_ops.core.downtime import Downtime, check, estimate, over, warnings
from ddtree_ops.core.errors import PreconditionFailed

pytestmark = pytest.mark.tier("transaction")


def entry(downtime_s: float | None, mode: str = "shadow", **more: Any) -> dict[str, Any]:
    return {
        "outcome": "confirmed",
        "kind": "deploy",
        "mode": mode,
        "release": "aa",
        "downtime_s": downtime_s,
        **more,
    }


def judged(*history: dict[str, Any], release: str = "bb", linked: bool = True) -> Downtime:
    return estimate(history, mode="shadow", release=release, linked=linked, stop_limit_s=30)


def test_without_a_start_it_is_unknown_and_says_the_bound_of_the_stop() -> None:
    found = judged(entry(None), entry(9, outcome="rolled-back"))
    assert found.seconds is None
    assert "unknown" in found.text
    assert "30 s" in found.text


def test_it_is_the_median_so_that_one_odd_start_counts_little() -> None:
    found = judged(entry(40), entry(400), entry(42))
    assert found.seconds == 42
    assert "about 42 s" in found.text
    assert "84 s if it fails" in found.text
    assert "median of the last 3 starts in shadow" in found.text


def test_only_the_last_five_count() -> None:
    assert judged(*[entry(900)] * 6, *[entry(10)] * 5).seconds == 10


def test_starts_in_the_same_mode_come_before_all_others() -> None:
    assert judged(entry(40), entry(9, mode="dflash"), entry(9, mode="dflash")).seconds == 40
    other = judged(entry(9, mode="dflash"))
    assert other.seconds == 9
    assert "none of them in shadow" in other.text


def test_stop_and_start_are_told_apart() -> None:
    assert "stop 5 s, start 35 s" in judged(entry(40, stop={"seconds": 5})).text


def test_a_rollback_that_was_measured_is_a_start_too() -> None:
    assert judged(entry(12, kind="undo")).seconds == 12


@pytest.mark.parametrize(
    ("release", "linked", "word"),
    [("aa", False, "ran here before"), ("bb", True, "found again"), ("bb", False, "cold")],
)
def test_caches(release: str, linked: bool, word: str) -> None:
    assert word in judged(entry(40), release=release, linked=linked).text


@pytest.mark.parametrize(
    ("ran", "runtime", "word"),
    [
        ({}, "77", "cold: torch, Triton and FlashInfer come from runtime 77, which never ran here"),
        ({"runtime": "55"}, "77", "cold"),
        ({"runtime": "77"}, "77", "found again"),
        ({"runtime": "77"}, None, "found again"),
        ({"runtime": "55", "release": "bb"}, "77", "ran here before"),
        ({"runtime": "77", "outcome": "rolled-back"}, "77", "cold"),
    ],
)
def test_a_new_runtime_has_cold_caches(ran: dict[str, str], runtime: str | None, word: str) -> None:
    found = estimate(
        [entry(40), entry(40, **ran)],
        mode="shadow",
        release="bb",
        linked=True,
        stop_limit_s=30,
        runtime=runtime,
    )
    assert word in found.text


@pytest.mark.parametrize(
    ("seconds", "limit", "refused", "warned"),
    [
        (40.0, None, False, ""),
        (40.0, 39.0, True, ""),
        (40.0, 40.0, False, "80 s"),
        (40.0, 80.0, False, ""),
        (None, 10.0, False, "cannot be judged"),
        (None, None, False, ""),
    ],
)
def test_max_downtime(seconds: float | None, limit: float | None, refused: bool, warned: str) -> None:
    found = Downtime(seconds, "text")
    assert bool(over(found, limit)) is refused
    if refused:
        with pytest.raises(PreconditionFailed, match="about 40 s, max_downtime is 39 s"):
            check(found, limit, "ct129")
    else:
        check(found, limit, "ct129")
        said = " ".join(warnings(found, limit))
        assert (warned in said) if warned else said == ""
