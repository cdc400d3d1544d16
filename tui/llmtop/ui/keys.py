"""The one table of keys: bindings, footer, help and command palette are made from it.

Those of a replay are there only while a recording is played, those of a load test on its page; the help names them
always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.binding import Binding

from llmtop.ui.panels.board import PANELS


@dataclass(frozen=True, slots=True)
class Key:
    """An action: its keys (the first is shown), a short label, a sentence for the help, where it works."""

    action: str
    keys: tuple[str, ...]
    label: str
    text: str
    shown: str = ""
    footer: int = 0  # rank in the footer, 1 first; 0 = not there
    screens: tuple[str, ...] = ()  # empty = everywhere
    priority: bool = False

    @property
    def call(self) -> str:
        """The action of the first key."""
        return self.action_of(self.keys[0])

    def action_of(self, key: str) -> str:
        """The action of one of the keys, which may have it as its parameter."""
        return self.action.replace("{key}", key)

    @property
    def name(self) -> str:
        """The action without its parameters."""
        return self.action.partition("(")[0]


KEYS: tuple[Key, ...] = (
    Key("load", ("l",), "Load", "Plan a load test of the selected server; starts nothing by itself", footer=2),
    Key("warmup", ("w",), "Warm-up", "Watch a start-up phase by phase", footer=3),
    Key("mark", ("m",), "Mark", "Set a mark: new low-water and peak epoch from here", footer=5),
    Key("record", ("r",), "Record", "Start or stop recording to a file", footer=10),
    Key("engines", ("e",), "Engines", "All servers and their engines", footer=4),
    Key("nodes", ("n",), "Nodes", "All machines: memory, GPUs, fabric, and what runs there"),
    Key("gpus", ("g",), "GPUs", "All devices and their processes", footer=6),
    Key("dashboard", ("d",), "Dashboard", "Back to the dashboard"),
    Key("stage", ("v",), "Stage", "Large figures for a projector", footer=9),
    Key(
        "panel('{key}')",
        ("enter", *(panel.key for panel in PANELS)),
        "Panel",
        "One panel on the whole screen (a click does it too), then the next one; in the help its words",
        shown="Enter",
        footer=11,
    ),
    Key("pause", ("p", "space"), "Pause", "Freeze the view; collection goes on. Replay: stop, play", footer=7),
    Key("next_server", ("tab",), "Next", "Show the next server", shown="Tab"),
    Key("previous_server", ("shift+tab",), "Previous", "Show the previous server", shown="Shift+Tab"),
    Key("zoom(1)", ("right_square_bracket",), "Zoom out", "Charts over a longer time", shown="]"),
    Key("zoom(-1)", ("left_square_bracket",), "Zoom in", "Charts over a shorter time", shown="["),
    Key(
        "faster", ("plus", "equals_sign"), "Faster", "Poll more often (not below 0.2 s). Replay: play faster", shown="+"
    ),
    Key("slower", ("minus",), "Slower", "Poll less often (not above 60 s). Replay: play slower", shown="-"),
    Key("theme", ("t",), "Theme", "Next colour theme, light or dark"),
    Key("save_screen", ("s",), "Screenshot", "Save the screen as an SVG file"),
    Key(
        "sort", ("o",), "Sort", "Sort by the next column; again at the end: the other way", screens=("engines", "nodes")
    ),
    Key("filter", ("slash",), "Filter", "Show only rows that contain a text", shown="/", screens=("engines", "nodes")),
    Key("repaint", ("ctrl+l",), "Redraw", "Draw the whole screen anew", shown="Ctrl+L"),
    Key("help", ("question_mark", "f1", "h"), "Help", "This page", shown="?", footer=1),
    Key("back", ("escape",), "Back", "Leave this page", shown="Esc"),
    Key("command_palette", ("ctrl+p",), "Commands", "All commands by name", shown="Ctrl+P"),
    Key("leave", ("q", "f10", "ctrl+c", "ctrl+q"), "Quit", "Leave llmtop", footer=3, priority=True),
)
REPLAY_KEYS: tuple[Key, ...] = (
    Key("seek(-10)", ("left",), "Back 10 s", "Replay: 10 s back", shown="Left", footer=2),
    Key("seek(10)", ("right",), "On 10 s", "Replay: 10 s on", shown="Right", footer=3),
    Key("seek_mark(-1)", ("less_than_sign",), "Mark back", "Replay: the mark before", shown="<", footer=5),
    Key("seek_mark(1)", ("greater_than_sign",), "Next mark", "Replay: the next mark", shown=">", footer=5),
    Key("step", ("full_stop",), "Step", "Replay: stop, and show the next snapshot", shown=".", footer=9),
    Key("loop", ("L",), "Loop", "Replay: begin anew at the end, or not", footer=10),
)
LOAD_KEYS: tuple[Key, ...] = (
    Key("start", ("f5",), "Start", "Load test: start the plan; asks first", shown="F5", priority=True),
    Key("scenario(1)", ("f6", "down"), "Scenario", "Load test: the next kind of test", shown="F6", priority=True),
    Key("scenario(-1)", ("up",), "Previous", "Load test: the kind of test before", shown="Up"),
    Key(
        "new_plan",
        ("f7",),
        "Plan",
        "Load test: a new plan; from a comparison back to the answer",
        shown="F7",
        priority=True,
    ),
    Key("stop", ("f8", "x"), "Stop", "Load test: stop at once", shown="F8", priority=True),
    Key("copy", ("f9",), "Copy", "Load test: copy the equal vllm bench serve commands", shown="F9", priority=True),
    Key("compare", ("c",), "Compare", "Load test: this run beside the one before it"),
    Key("yes", ("y",), "Yes", "Load test: the answer that starts it"),
    Key("no", ("n",), "No", "Load test: do not start"),
)
ALL_KEYS = KEYS + REPLAY_KEYS
REPLAY_ACTIONS = frozenset(row.name for row in REPLAY_KEYS)


def bindings(rows: Sequence[Key] = ALL_KEYS) -> list[Binding]:
    """Textual bindings for the keys of a table, those that work everywhere unless told otherwise."""
    return [
        Binding(
            key,
            row.action_of(key),
            row.label,
            show=False,
            key_display=row.shown or None,
            # a letter must reach an input field, Ctrl+C and the function keys must work even there
            priority=row.priority and len(key) > 1,
            tooltip=row.text,
            id=f"{row.action}.{place}",
        )
        for row in rows
        for place, key in enumerate(row.keys)
    ]
