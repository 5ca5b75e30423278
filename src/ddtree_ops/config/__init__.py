"""hosts.yaml and facts/ as typed models, with errors as file:line:col."""

from ddtree_ops.config.load import discover, load_inventory
from ddtree_ops.config.model import HostConfig, Inventory, Timeouts
from ddtree_ops.config.problems import ConfigProblem, Problem
from ddtree_ops.config.secrets import Secret, SecretRef, redact

__all__ = [
    "ConfigProblem",
    "HostConfig",
    "Inventory",
    "Problem",
    "Secret",
    "SecretRef",
    "Timeouts",
    "discover",
    "load_inventory",
    "redact",
]
