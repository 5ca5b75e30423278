"""Loads the Jinja templates of units: strict about names, quoting by systemd's rules."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ddtree_ops.data import data_dir
from ddtree_ops.units.quote import quote_assignment


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(data_dir("templates") / "systemd"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["assignment"] = lambda value, name: quote_assignment(name, value)
    environment.filters["literal"] = lambda text: str(text).replace("%", "%%")
    return environment


def fill(template: str, **values: Any) -> str:
    """Fill `templates/systemd/<template>`. Raises jinja2.UndefinedError for a name that was not given."""
    return _environment().get_template(template).render(**values)
