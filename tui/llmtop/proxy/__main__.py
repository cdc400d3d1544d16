"""`python -m llmtop.proxy`: the proxy alone."""

from llmtop.proxy.server import main

if __name__ == "__main__":
    raise SystemExit(main())
