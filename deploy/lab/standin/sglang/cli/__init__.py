"""Part of the SGLang stand-in (see sglang/__init__.py)."""
