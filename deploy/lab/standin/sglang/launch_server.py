"""`python -m sglang.launch_server ARGV`: parse, then serve until a signal ends it."""

import sys
import warnings
from typing import List

from sglang.srt.server_args import ServerArgs, prepare_server_args


def run_server(server_args: ServerArgs) -> None:
    """Serve in this process; its children are gone when it returns."""
    from sglang.srt.entrypoints.http_server import launch_server

    launch_server(server_args)


def serve(argv: List[str]) -> None:
    """Parse and run, with the scenario's import phase between the two."""
    server_args = prepare_server_args(argv)
    from sglang.srt.scenario import load_scenario

    load_scenario(server_args).reach("import")
    run_server(server_args)


if __name__ == "__main__":
    warnings.warn(
        "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.",
        UserWarning,
        stacklevel=1,
    )
    serve(sys.argv[1:])
