"""Who may come in: the token of the printed URL, the cookie that takes its place, and the names of this server.

A token keeps strangers out. Checking Host keeps out pages that make a name of theirs point here, and checking Origin
keeps out pages of other sites, which could otherwise open a websocket with the cookie of whoever visits them.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?")


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Gate:
    """The secrets of one run, and the names under which it may be reached (an IPv6 address in brackets)."""

    names: tuple[str, ...] = LOOPBACK
    token: str = field(default_factory=_secret, repr=False)
    session: str = field(default_factory=_secret, repr=False)
    # cookies do not tell ports apart: two runs on one host must not take each other's
    cookie: str = field(default_factory=lambda: f"llmtop-{secrets.token_hex(4)}")

    def knows_host(self, host: str | None) -> bool:
        """Whether a Host header is one of this server's names; the port may be that of a tunnel."""
        found = _HOST.fullmatch((host or "").lower())
        return found is not None and found[1] in self.names

    def same_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a page of this server asks."""
        return bool(host) and origin == f"http://{host}"

    def right_token(self, given: str | None) -> bool:
        """Whether this is the token of the URL."""
        return _equal(given, self.token)

    def right_session(self, given: str | None) -> bool:
        """Whether this is the value of the cookie."""
        return _equal(given, self.session)


def _equal(given: str | None, wanted: str) -> bool:
    """Compare in a time that says nothing about the wanted text."""
    return given is not None and secrets.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def headers(host: str) -> dict[str, str]:
    """What every answer says: nothing from elsewhere, nothing to elsewhere, nothing kept."""
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self' 'unsafe-inline'",  # the terminal in the page sets styles by script
        "font-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": f"'self' ws://{host}",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
