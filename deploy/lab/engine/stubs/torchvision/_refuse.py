"""The one function behind every name of the stub: refuse, and say why."""

from __future__ import annotations

from typing import Any, NoReturn


def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise: whoever decodes an image needs the real torchvision.

    Raises: RuntimeError, always.
    """
    raise RuntimeError("torchvision is a stub of the ddtree-ops lab: images are not available here")
