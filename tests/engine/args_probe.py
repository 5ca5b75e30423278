"""Parses command lines with the engine's own parser: `args_probe.py < [[argv…], …]` prints what became of each.

Runs under .venv-engine's python. One JSON object a line: {"error": sentence} or the ServerArgs fields asked for.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

FIELDS = [
    "speculative_num_draft_tokens",
    "speculative_dflash_block_size",
    "speculative_eagle_topk",
    "attention_backend",
    "disable_overlap_schedule",
]


def parse(argv: list[str]) -> dict[str, object]:
    """One command line's fate."""
    from sglang.srt.server_args import prepare_server_args

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = prepare_server_args(argv)
    except (ValueError, AssertionError) as error:
        return {"error": str(error)}
    except SystemExit:
        return {"error": said.getvalue().strip().splitlines()[-1]}
    return {name: getattr(args, name) for name in FIELDS}


if __name__ == "__main__":
    for line in [parse(argv) for argv in json.load(sys.stdin)]:
        print(json.dumps(line))
