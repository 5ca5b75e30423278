"""Where events and results go: people read stderr, machines read stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from ddtree_ops.core.events import (
    Event,
    LogLine,
    Note,
    Other,
    PhasePassed,
    Progress,
    Result,
    StateChanged,
    VerdictGiven,
    event_json,
)

if TYPE_CHECKING:
    from rich.live import Live

SCHEMA_VERSION = 1


class Said:
    """What this run has put on stdout: after its document an error adds no second one."""

    document = False


def say(text: str) -> None:
    """A line for the person at the terminal, without secrets."""
    from ddtree_ops.config.secrets import redact

    print(redact(text), file=sys.stderr, flush=True)


def document(payload: Mapping[str, Any]) -> None:
    """The one JSON document of a `--json` run; `schema_version` is added and secrets are taken out here."""
    Said.document = True
    _print_json({"schema_version": SCHEMA_VERSION, **payload}, indent=2)


def _print_json(payload: Mapping[str, Any], indent: int | None = None) -> None:
    from ddtree_ops.config.secrets import redact_json

    print(json.dumps(redact_json(payload), ensure_ascii=False, indent=indent), flush=True)


def sentence(event: Event, verbose: int = 0) -> str | None:
    """Return the line a person reads for `event`, or None where it says nothing new to them."""
    if isinstance(event, StateChanged):
        return event.state
    if isinstance(event, PhasePassed):
        return f"{event.phase} passed" + (f" in {event.seconds:.1f} s" if event.seconds is not None else "")
    if isinstance(event, Note):
        return event.text
    if isinstance(event, LogLine):
        return f"log: {event.line}" if verbose else None
    if isinstance(event, VerdictGiven):
        return _verdict(event)
    if isinstance(event, Progress):
        return f"{event.phase}: {event.text}" if verbose else None
    return f"{event.data}" if isinstance(event, Other) and verbose > 1 else None


def _verdict(event: VerdictGiven) -> str:
    text = event.verdict + (f" in {event.phase}" if event.phase else "")
    if event.reason:
        text += f": {event.reason}"
    if event.lag_s is not None:
        text += f" (seen {event.lag_s:.1f} s after the process died)"
    for label, value in (("first fatal line", event.line), ("hint", event.hint)):
        text += f"\n  {label}: {value}" if value else ""
    return text


class Sink:
    """Takes a host's events. A context manager; the base one shows nothing."""

    def __call__(self, host: str, event: Event) -> None:
        """Show one event."""

    def close(self) -> None:
        """Leave the terminal as it was."""

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class JsonLines(Sink):
    """`--events`: one object a line on stdout, each with its host."""

    def __call__(self, host: str, event: Event) -> None:
        _print_json({"host": host, **event_json(event)})


class PlainLines(Sink):
    """A line per event on stderr: pipes, CI, dumb terminals."""

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = verbose
        self._going_back: set[str] = set()

    def __call__(self, host: str, event: Event) -> None:
        text = sentence(event, self.verbose)
        if isinstance(event, StateChanged) and event.state == "ROLLING_BACK":
            self._going_back.add(host)
        if text is not None:
            whose = "the service as before: " if self._starts_again(host, event) else ""
            self.line(f"{host}  {whose}{text}")

    def _starts_again(self, host: str, event: Event) -> bool:
        """Whether the event tells of the start that a rollback makes, which would look like the new release's."""
        return host in self._going_back and isinstance(event, (PhasePassed, Progress, VerdictGiven))

    def line(self, text: str) -> None:
        """Write one durable line."""
        say(text)


class LiveLines(PlainLines):
    """As PlainLines, and under them a moving line per host with what it is doing now."""

    def __init__(self, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.now: dict[str, str] = {}
        self.live: Live | None = None

    def __call__(self, host: str, event: Event) -> None:
        if isinstance(event, (Progress, StateChanged, PhasePassed)):
            self.now[host] = (
                f"{event.phase}: {event.text}" if isinstance(event, Progress) else sentence(event) or ""
            )
        if isinstance(event, (Result, VerdictGiven)):
            self.now.pop(host, None)
        super().__call__(host, event)
        self._draw()

    def line(self, text: str) -> None:
        from rich.text import Text

        from ddtree_ops.config.secrets import redact

        self._draw()
        assert self.live is not None
        self.live.console.print(Text(redact(text)), soft_wrap=True)

    def _draw(self) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        if self.live is None:
            self.live = Live(
                console=Console(stderr=True),
                transient=True,
                refresh_per_second=8,
                redirect_stdout=False,  # or the JSON lines would go to the terminal
            )
            self.live.start()
        self.live.update(
            Group(*(Spinner("dots", Text(f" {host}  {what}")) for host, what in self.now.items()))
        )

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


class Both(Sink):
    """Machines and people at once."""

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = sinks

    def __call__(self, host: str, event: Event) -> None:
        for sink in self.sinks:
            sink(host, event)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def open_sink(
    events: bool = False, quiet: bool = False, verbose: int = 0, stream: TextIO | None = None
) -> Sink:
    """Return the sink that the options and the terminal ask for. `stream` stands for stderr in tests."""
    people: Sink = Sink()
    if not quiet:
        people = LiveLines(verbose) if _moves(stream or sys.stderr) else PlainLines(verbose)
    return Both(JsonLines(), people) if events else people


def on_terminal() -> bool:
    """Whether stderr is a terminal that can be drawn on."""
    return _moves(sys.stderr)


def _moves(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
