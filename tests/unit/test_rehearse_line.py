"""A rehearsal whose line ends, by a person's hand or by itself: what is said of the host."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_ops.apply.rehearse import rehearse
from ddtree_ops.core.errors import Detached, HostLocked, OpsError, Unreachable
from ddtree_ops.core.rehearsal import Small

pytestmark = pytest.mark.tier("preflight")


def run(error: BaseException | None) -> str:
    class Client:
        def events(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
            yield {"ev": "beat"}
            if error is not None:
                raise error

    prepared: Any = SimpleNamespace(
        rehearsal=Small(["python3"], {"target": "/m"}),
        plan=SimpleNamespace(release="a" * 16),
        environment={},
        expect_state={},
        host=SimpleNamespace(name="ct129", interpreter=None),
    )
    client: Any = Client()
    return rehearse(prepared, client, "t", "me", {}, lambda event: None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, Unreachable),
        (Unreachable("the host did not answer for 20 s", host="ct129"), Unreachable),
        (KeyboardInterrupt(), Detached),
    ],
)
def test_a_line_that_ends_says_that_nothing_was_stopped(
    error: BaseException | None, kind: type[OpsError]
) -> None:
    with pytest.raises(kind) as caught:
        run(error)
    assert "nothing was stopped" in str(caught.value.meaning)
    assert caught.value.host == "ct129"
    assert caught.value.next == "type the same command again"


def test_the_agents_own_words_stay_as_they_are() -> None:
    with pytest.raises(HostLocked, match="held"):
        run(HostLocked("held by another", host="ct129"))
