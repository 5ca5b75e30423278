"""The `sglang serve …` entry point, so that units written that way start too."""

import sys

from sglang.launch_server import serve


def main() -> None:
    """Console script: only `serve` exists here."""
    if sys.argv[1:2] != ["serve"]:
        raise SystemExit("standin: only `sglang serve …` is simulated.")
    serve(sys.argv[2:])
