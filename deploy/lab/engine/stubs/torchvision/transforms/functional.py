"""Names that transformers imports from torchvision.transforms.functional."""

from torchvision._refuse import refuse
from torchvision.transforms import InterpolationMode

__all__ = ["InterpolationMode", "normalize", "pil_to_tensor", "resize", "to_pil_image"]

normalize = pil_to_tensor = resize = to_pil_image = refuse
