"""ddtree-ops: roll out a patched SGLang to GPU hosts over SSH and systemd, and roll it back by itself."""

__version__ = "0.1.0"
