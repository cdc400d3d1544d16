"""Fakes at the process edge."""
