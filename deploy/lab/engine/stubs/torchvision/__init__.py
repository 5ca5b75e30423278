"""Test-only import stub: SGLang imports torchvision, and PyPI's build does not load beside a CPU torch."""

__version__ = "0.0.0+ddtree.lab.stub"
