"""`python -m llmtop.sources.demo MACHINE`: the simulated server alone."""

import sys

from llmtop.sources.demo.child import main

sys.exit(main())
