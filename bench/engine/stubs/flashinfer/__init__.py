"""Stands in for flashinfer 0.6.8: SGLang 0.5.11 imports it on CUDA even where the triton backend does the work."""

__version__ = "0.6.8.post1"
