"""The one error that the lab raises for what a person can put right."""

from __future__ import annotations


class LabProblem(Exception):
    """One sentence for the operator.

    usage: true where the command line is wrong, false where the machine lacks something. next: the command to type.
    """

    def __init__(self, what: str, *, usage: bool = False, next: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.usage = usage
        self.next = next
