"""The themes of the key `t`: colours that also people who see red and green alike can tell apart, dark and light.

Good, low and critical differ in lightness and in blue against yellow; the words beside them say the same. The
terminal's own palette is among them. The greys are grey enough, and the blue green enough, to stay so in 256 colours.
"""

from __future__ import annotations

from dataclasses import replace

from textual.theme import BUILTIN_THEMES, Theme

DARK = Theme(
    "llmtop",
    primary="#3d75a1",
    secondary="#8a8fa8",
    success="#3fb8a0",
    warning="#f0b429",
    error="#ff6b5e",
    accent="#c8a2ff",
    foreground="#d5dae3",
    background="#121418",
    surface="#181b20",
    panel="#21252b",
    boost="#2a2e35",
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
# the terminal's own colours; blue bars are too dark on the black of a console
PALETTE = replace(
    BUILTIN_THEMES["ansi-dark"], name="llmtop-ansi", primary="ansi_cyan", secondary="ansi_white", accent="ansi_magenta"
)
OWN = (DARK, LIGHT, PROJECTOR, PALETTE)
THEMES = (*(theme.name for theme in OWN), "tokyo-night", "ansi-light")
