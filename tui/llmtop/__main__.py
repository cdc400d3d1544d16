"""`python -m llmtop`."""

from llmtop.cli import main

main()
