"""The service's user as the probe tells it."""

from __future__ import annotations

import pytest

from ddtree_agent import probe_host

pytestmark = pytest.mark.tier("preflight")


def test_a_user_that_systemd_makes_up_is_there_without_the_databases_knowing() -> None:
    """Its name is the unit's; preflight blocked such a service on a host without libnss-systemd."""
    shown = {"User": "ddtree-absent", "DynamicUser": "yes"}
    assert probe_host.user(shown) == {"name": "ddtree-absent", "exists": True}
    assert probe_host.identity(shown) == {}
    assert not probe_host.user({**shown, "DynamicUser": "no"})["exists"]
