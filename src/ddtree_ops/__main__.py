"""`python -m ddtree_ops` is the console script."""

from ddtree_ops.cli.app import main

main()
