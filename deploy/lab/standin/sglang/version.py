"""The release that the stand-in stands in for."""

__version__ = "0.5.11"
