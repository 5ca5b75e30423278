"""Names that SGLang and transformers import from torchvision.io."""

from __future__ import annotations

import enum

from torchvision._refuse import refuse


class ImageReadMode(enum.Enum):
    """Read modes; transformers evaluates the members at import."""

    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4


decode_image = decode_jpeg = read_image = read_video = refuse
