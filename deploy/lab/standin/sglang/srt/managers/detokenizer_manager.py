"""The detokenizer process: turns token ids into text on the way from the scheduler to the main process."""

from multiprocessing.connection import Connection
from typing import Any

from sglang.srt.process import become


def text_of(tokens: Any) -> str:
    """One letter a token: readable, and different where tokens differ by less than 26."""
    return "".join(chr(97 + token % 26) for token in tokens)


def run_detokenizer_process(inbox: Connection, outbox: Connection) -> None:
    """Serve until the scheduler's end of the pipe closes."""
    become("sglang::detokenizer")
    try:
        while True:
            reply = inbox.recv()
            reply["text"] = text_of(reply["output_ids"])
            outbox.send(reply)
    except (EOFError, OSError, KeyboardInterrupt):
        return
