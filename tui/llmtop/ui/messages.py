"""Messages from other threads to the app."""

from __future__ import annotations

from textual.message import Message


class SnapshotReady(Message):
    """Something is in the inbox; one pending message stands for any number of snapshots."""

    def can_replace(self, message: Message) -> bool:
        """A newer one says nothing more."""
        return isinstance(message, SnapshotReady)


class LoadNews(Message):
    """The load thread has put events into its inbox."""

    def can_replace(self, message: Message) -> bool:
        """A newer one says nothing more."""
        return isinstance(message, LoadNews)
