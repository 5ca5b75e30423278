"""Stands in for IPython, which sglang.utils imports for notebooks: nothing in a server calls it."""
