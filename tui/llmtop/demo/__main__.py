"""`python -m llmtop.demo MACHINE`: the simulated server alone."""

import sys

from llmtop.demo.child import main

sys.exit(main())
