"""Watching a server start: the command line, the launcher, the watcher and the report."""
