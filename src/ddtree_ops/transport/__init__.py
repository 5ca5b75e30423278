"""Ways to reach a host, behind one small Protocol."""
