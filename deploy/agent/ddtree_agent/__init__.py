"""The host agent: runs a rollout on the host itself, with nothing but the standard library (Python 3.9+)."""
