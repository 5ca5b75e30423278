"""`python3 ddtree-agent.pyz VERB` on the host itself."""

import sys

from ddtree_agent.main import main

sys.exit(main(sys.argv[1:]))
