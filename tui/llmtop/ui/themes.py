"""The themes of the key `t`: colours that also people who see red and green alike can tell apart, dark and light.

Good, low and critical differ in lightness and in blue against yellow; the words beside them say the same. The
terminal's own palette is among them.
"""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    "llmtop",
    primary="#3d719f",
    secondary="#8a8fa8",
    success="#3fb8a0",
    warning="#f0b429",
    error="#ff6b5e",
    accent="#c8a2ff",
    foreground="#d5dae3",
    background="#10141b",
    surface="#161b24",
    panel="#1d2430",
    boost="#232b39",
)
LIGHT = Theme(
    "llmtop-light",
    primary="#4f8fc7",
    secondary="#6a7080",
    success="#007a66",
    warning="#a35c00",
    error="#b3261e",
    accent="#6b3fa0",
    foreground="#1c2128",
    background="#fbfaf7",
    surface="#f2f0ea",
    panel="#e8e5dc",
    boost="#e2ded2",
    dark=False,
)
PROJECTOR = Theme(
    "llmtop-projector",
    primary="#3f86c6",
    secondary="#c0c0c0",
    success="#4be3c3",
    warning="#ffd23f",
    error="#ff7a6b",
    accent="#e0c3ff",
    foreground="#ffffff",
    background="#000000",
    surface="#0a0a0a",
    panel="#1a1a1a",
    boost="#262626",
)
OWN = (DARK, LIGHT, PROJECTOR)
THEMES = ("llmtop", "llmtop-light", "llmtop-projector", "tokyo-night", "ansi-dark", "ansi-light")
