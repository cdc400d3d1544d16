"""A signal to end for threads that wake up many times a second."""

from __future__ import annotations

import threading


class Ending:
    """As `threading.Event`, set once and for good, at three quarters of the CPU time per wait that times out."""

    def __init__(self) -> None:
        self._held = threading.Lock()
        self._held.acquire()
        self._set = False

    def set(self) -> None:
        """End all waits, those to come included."""
        if not self._set:
            self._set = True
            self._held.release()

    def is_set(self) -> bool:
        """Whether the end has come."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most so long; whether it has come."""
        if not self._set and self._held.acquire(timeout=max(0.0, seconds)):
            self._held.release()  # for the others that wait
        return self._set
