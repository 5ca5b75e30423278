"""Drives a plan on a host through its agent; follows events; confirms."""
