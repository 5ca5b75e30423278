"""Package marker: transformers imports torchvision.transforms.v2.functional."""
