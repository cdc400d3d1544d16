"""`llmtop web`: the same screens in a browser, from one poller, behind a token."""
