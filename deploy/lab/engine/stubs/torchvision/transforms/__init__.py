"""Names that transformers imports from torchvision.transforms (the enum is used as a dictionary key)."""

from __future__ import annotations

import enum


class InterpolationMode(enum.Enum):
    """Resampling filters, by torchvision's names and values."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
