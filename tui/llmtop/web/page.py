"""What a browser gets: the page that swaps the token for a cookie, the page with the terminal, its script."""

from __future__ import annotations

from html import escape

# The token has to leave the address bar. A redirect would not do: a browser that came from another site does not
# send a strict cookie along with it.
WELCOME = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>llmtop</title>
<meta http-equiv="refresh" content="0;url=/"></head><body></body></html>
"""

# without the focus the terminal would wait for a click before it takes keys
SCRIPT = """\
const focus = () => document.querySelector(".xterm-helper-textarea")?.focus();
addEventListener("load", () => setTimeout(focus));
addEventListener("focus", focus);
addEventListener("click", focus);
"""

_TERMINAL = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>llmtop</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/css/xterm.css">
<style>
@font-face { font-family: "Roboto Mono"; src: url("/static/fonts/RobotoMono-VariableFont_wght.ttf"); }
html, body { margin: 0; height: 100%; overflow: hidden; background: #121212; }
.textual-terminal { position: absolute; inset: 0; }
.xterm .xterm-viewport { overflow: hidden !important; }
.closed { display: none; position: absolute; inset: 0; align-items: center; justify-content: center;
  background: #121212; color: #e0e0e0; font: 16px "Roboto Mono", monospace; }
body.-closed .closed { display: flex; }
a { color: #57a5e2; margin-left: 1ch; }
</style>
<script src="/static/js/textual.js"></script>
<script src="/page.js"></script></head>
<body><div id="terminal" class="textual-terminal" data-session-websocket-url="ws://HOST/ws"
 data-font-size="16"></div>
<div class="closed">This page has ended.<a href="/">Open it again</a></div></body></html>
"""


def terminal(host: str) -> str:
    """The page that opens a terminal at the websocket of `host`, a checked Host header."""
    return _TERMINAL.replace("HOST", escape(host))
