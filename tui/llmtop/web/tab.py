"""The process of one tab: `python -m llmtop.web.tab SOCKET`, started by the web server, drawing into its pipes."""

from __future__ import annotations

import sys


def main(path: str) -> int:
    """Show the screens until the tab is closed; the exit code."""
    from llmtop.web.link import Link
    from llmtop.web.screens import run_tab

    return run_tab(Link(path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
