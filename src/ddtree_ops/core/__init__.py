"""Pure decisions: no I/O, no clock, no environment (an import-linter contract)."""
