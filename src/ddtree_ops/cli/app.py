"""The console script: verbs by name, errors to sentences and exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ddtree_ops import __version__
from ddtree_ops.cli._lazy import LazyGroup
from ddtree_ops.core.errors import Detached, OpsError, UsageProblem


def _verb(name: str, text: str) -> tuple[str, str, str]:
    return f"ddtree_ops.cli.{name}", name, text


class Verbs(LazyGroup):
    """All verbs, in the order of a first day's work."""

    table = {
        "init": _verb("init", "Write a commented hosts.yaml."),
        "adopt": _verb("adopt", "Read the service that runs on a host into facts/HOST.yaml."),
        "render": _verb("render", "Units of every host and mode from committed files, for CI."),
        "doctor": _verb("doctor", "Preflight alone: facts and verdicts, nothing touched."),
        "snapshot": _verb("snapshot", "Fetch the engine's sources from a host, verified."),
        "plan": _verb("plan", "What a deploy would change, with diffs."),
        "apply": _verb("apply", "Carry out a saved plan, if nothing moved since."),
        "deploy": _verb("deploy", "Put a host into a mode: preflight, push, switch, watch, confirm."),
        "rollback": _verb("rollback", "Undo the last confirmed change."),
        "attach": _verb("attach", "Re-join the open rollout from anywhere, and confirm it."),
        "hold": _verb("hold", "Let no deploy begin on a host, and say why."),
        "unhold": _verb("unhold", "Lift a hold."),
        "status": _verb("status", "What runs on the hosts, and whether it is what was confirmed."),
        "logs": _verb("logs", "The last lines of the service's log."),
        "history": _verb("history", "What ran, who changed it, and why it failed."),
        "diagnose": _verb("diagnose", "What a pasted log means, with no host."),
        "gc": _verb("gc", "Free what no service of a host needs any more."),
        "env": ("ddtree_ops.cli.env", "app", "Compare two hosts' packages; carry a set over."),
        "schema": _verb("schema", "The JSON Schema of hosts.yaml."),
        "patch": ("ddtree_ops.cli.patch", "app", "Patch series and the state of a source tree."),
        "lab": ("ddtree_ops.cli.lab", "app", "Throwaway hosts to rehearse on."),
    }


app = typer.Typer(
    name="ddtree-ops",
    cls=Verbs,
    help="Roll out SGLang with DDTree speculative decoding over SSH and systemd, and roll it back.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"ddtree-ops {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit."),
    ] = None,
) -> None:
    """Roll out SGLang with DDTree speculative decoding over SSH and systemd, and roll it back."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command line and exit with its code (design 6). No error leaves here as a traceback."""
    # SIGTERM is an interrupt too: a rollout is asked back, not left to its deadline.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Run `argv` and return the exit code; everything printed is on stderr, or JSON on stdout."""
    from ddtree_ops.cli import _failure, _sinks

    _sinks.Said.document = False
    try:
        result: Any = typer.main.get_command(app).main(argv, prog_name="ddtree-ops", standalone_mode=False)
        if result == Detached.exit_code:  # typer's word for Ctrl-C
            raise KeyboardInterrupt
        return result if isinstance(result, int) and not isinstance(result, bool) else 0
    except OpsError as error:
        return _failure.report(error, argv)
    except _failure.CLICK_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # `ddtree-ops $VERB` with VERB empty must not exit 0
            print(_failure.message(error), file=sys.stderr)
            return UsageProblem.exit_code
        return _failure.report(_failure.usage_problem(error), argv)
    except (KeyboardInterrupt, typer.Abort):
        return _failure.report(Detached("interrupted", next="ddtree-ops status"), argv)
    except BrokenPipeError:
        return _failure.broken_pipe()
    except OSError as error:
        if error.filename is None:
            return _failure.report_bug(error, argv)
        told = UsageProblem(
            f"{error.filename}: {error.strerror}", next="correct that file or its permissions"
        )
        return _failure.report(told, argv)
    except Exception as error:
        return _failure.report_bug(error, argv)
