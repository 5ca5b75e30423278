"""Preflight by area: a file holds the facts of one area of a host, how they are read, and the rules over them."""
