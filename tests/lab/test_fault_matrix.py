"""The fault matrix of anchors.md 3.2 on real hosts: no cell may lose a host, lie about it, or need a hand.

DDTREE_MATRIX_HOSTS: lab hosts in parallel (6). DDTREE_MATRIX_OUT: where the rows go (build/reliability/matrix.json).
DDTREE_MATRIX_ONLY: only cells whose name holds one of these texts (`;` between them).
"""

from __future__ import annotations

import os
from pathlib import Path

import matrix
import pytest
from ddtree_lab.client import Lab
from invariants import late
from matrix_faults import FAULTS
from matrix_table import EVERY_RUN, TABLE, Case
from moments import MOMENTS

pytestmark = [pytest.mark.lab, pytest.mark.tier("transaction")]
HOSTS = int(os.environ.get("DDTREE_MATRIX_HOSTS", "6"))
ONLY = os.environ.get("DDTREE_MATRIX_ONLY", "")


def _held(lab: Lab, cases: list[Case], project: Path) -> None:
    chosen = [case for case in cases if any(text in case.name for text in ONLY.split(";"))]
    rows = matrix.run(lab, chosen, project, HOSTS)
    assert len(rows) == len(chosen)
    broken = [f"{row.point} / {row.fault}: {'; '.join(row.why)}" for row in rows if not row.ok]
    assert not broken, f"{len(broken)} of {len(rows)} cells:\n" + "\n".join(broken)
    assert not late([row.lag_s for row in rows if row.lag_s is not None])


def test_the_table_names_what_there_is() -> None:
    assert {case.point for case in TABLE} <= set(MOMENTS)
    assert {case.fault for case in TABLE} <= set(FAULTS)
    assert len({case.name for case in TABLE}) == len(TABLE)
    every = [f"{point} / {fault}" for point, faults in EVERY_RUN.items() for fault in faults.split(", ")]
    assert {case.name for case in TABLE if case.ci} == set(every)
    assert {case.fault for case in TABLE if case.ci} == {case.fault for case in TABLE}


@pytest.mark.timeout(1500)
def test_the_cells_of_every_run(lab: Lab, tmp_path: Path) -> None:
    _held(lab, [case for case in TABLE if case.ci], tmp_path)


@pytest.mark.night  # an hour on two cores
@pytest.mark.timeout(4 * 3600)
def test_the_whole_matrix(lab: Lab, tmp_path: Path) -> None:
    _held(lab, TABLE, tmp_path)
