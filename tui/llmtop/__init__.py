"""llmtop: what htop is for processes, for LLM serving."""

__version__ = "0.1.0"
