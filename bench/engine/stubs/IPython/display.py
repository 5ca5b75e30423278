"""Names that sglang.utils imports from here; a notebook alone would use them."""

from typing import Any


class HTML:
    """A page for a notebook."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("IPython is a stub on the benchmark machine")


def display(*_: Any, **__: Any) -> None:
    raise NotImplementedError("IPython is a stub on the benchmark machine")


def clear_output(*_: Any, **__: Any) -> None:
    raise NotImplementedError("IPython is a stub on the benchmark machine")
