"""A command group that imports a verb's module when the verb runs, so that --help stays light."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# verb -> (module, name in it, one line of help). A sub-app's name is `app`.
Table = dict[str, tuple[str, str, str]]


class LazyGroup(TyperGroup):
    """Lists its verbs from `table` alone; `resolve_command` loads the one that was typed."""

    table: Table = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for verb, (_, _, text) in self.table.items():
            self.commands[verb] = TyperCommand(verb, help=text)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As click's, with the real command in place of the listed one."""
        name, command, rest = super().resolve_command(ctx, args)
        return (name, self.load(name), rest) if name in self.table else (name, command, rest)

    def load(self, verb: str) -> Any:
        """Import the verb's module and return its command."""
        module_name, attribute, text = self.table[verb]
        target = getattr(importlib.import_module(module_name), attribute)
        if isinstance(target, typer.Typer):
            return typer.main.get_group(target)
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(verb, help=target.__doc__ or text)(target)
        return typer.main.get_command(single)
