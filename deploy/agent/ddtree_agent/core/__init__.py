"""The modules of ddtree_ops.core that the host needs too: links here, copied verbatim into the zipapp."""
