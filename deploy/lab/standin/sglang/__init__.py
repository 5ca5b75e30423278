"""A stand-in for SGLang 0.5.11: same command line, log, endpoints and stop behaviour; no model."""

from sglang.version import __version__

__all__ = ["__version__"]
