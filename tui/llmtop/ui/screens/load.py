"""The load screen: a plan to edit, the run, the answer. Opening it starts nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, Label

from llmtop.config import Target
from llmtop.load import safety
from llmtop.load.plan import Plan, Speed, estimate_s
from llmtop.load.runner import RunOptions
from llmtop.load.scenarios import SCENARIOS, Options, bench_commands, build, fit
from llmtop.load.verdict import BadLimit, parse_slo
from llmtop.model.units import duration
from llmtop.ui.load_state import LoadControl
from llmtop.ui.panels.load import plan_lines, result_page, running_page
from llmtop.ui.panels.view import View, heading
from llmtop.ui.screens.base import ViewScreen, finish
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.statusbar import KeyHint
from llmtop_widgets.text import Line, Span, line

if TYPE_CHECKING:
    from llmtop.ui.app import LlmtopApp

NAMES = tuple(SCENARIOS)
FIELDS = (
    ("users", "Users", "at once, one level each"),
    ("prompts", "Requests", "per level"),
    ("input", "Prompt", "tokens per request"),
    ("output", "Answer", "tokens per request"),
    ("rates", "Rate", "requests per second, one level each"),
    ("seconds", "Seconds", "per level at most"),
    ("slo", "Limits", "the sweet spot keeps all of them"),
)
USED = {
    "sweep": ("users", "prompts", "input", "output", "slo"),
    "quick": ("users", "input", "output", "seconds", "slo"),
    "single": ("prompts", "output"),
    "output": ("users", "prompts", "input", "output"),
    "context": ("users", "prompts", "input", "output"),
    "soak": ("users", "input", "output", "seconds", "slo"),
    "rate": ("rates", "users", "prompts", "input", "output", "slo"),
    "burst": ("users", "input", "output", "slo"),
}


class BadField(Exception):
    """A field of the plan that cannot be read, in words."""


class LoadScreen(ViewScreen):
    """Plan, run, answer of a load test."""

    name_in_keys = "load"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f5", "start", "Start", show=False, priority=True),
        Binding("f8", "stop", "Stop", show=False, priority=True),
        Binding("x", "stop", "Stop", show=False),
        Binding("y", "yes", "Yes", show=False),
        Binding("n", "no", "No", show=False),
        Binding("f6", "scenario(1)", "Scenario", show=False, priority=True),
        Binding("f7", "new_plan", "Plan", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.scenario = NAMES[0]
        self._question: tuple[str, str] | None = None  # kind (yes, name) and text
        self._said = ""
        self._planning = True

    @property
    def control(self) -> LoadControl:
        """The run, owned by the app: it goes on when this page is left."""
        return cast("LlmtopApp", self.app).load

    def body(self) -> Iterable[Widget]:
        """The form of the plan, and the panel that is everything else."""
        with Vertical(id="plan"):
            yield LinePanel(id="scenario")
            for name, label, hint in FIELDS:
                with Horizontal(classes="field", id=f"row-{name}"):
                    yield Label(label, classes="label")
                    yield Input(id=f"field-{name}", compact=True)
                    yield Label(hint, classes="hint")
        yield LinePanel(id="body")
        yield Input(id="answer", compact=True, classes="hidden")

    def hints(self) -> list[KeyHint]:
        """What can be done here, by phase."""
        if self._planning:
            keys = [KeyHint("F5", "Start", 0), KeyHint("F6", "Scenario", 1), KeyHint("Tab", "Field", 2)]
        elif self.control.running:
            keys = [KeyHint("F8", "Stop", 0)]
        else:
            keys = [KeyHint("F7", "New plan", 0)]
        return [*keys, KeyHint("Esc", "Back", 0), KeyHint("F10", "Quit", 1)]

    def on_mount(self) -> None:
        """The plan, or the run that goes on."""
        self._planning = self.control.state is None or not self.control.state.active
        self._fill()
        self._phase()

    def _fill(self) -> None:
        """The defaults of the scenario."""
        plan = build(self.scenario, Plan("", ()), Options())
        first = plan.levels[0]
        values = {
            "users": ",".join(dict.fromkeys(str(level.concurrency) for level in plan.levels)),
            "prompts": str(first.num_prompts),
            "input": str(first.input_len) if self.scenario != "context" else "",
            "output": str(first.output_len) if self.scenario not in ("output", "single") else "",
            "rates": "0.5,1,2",
            "seconds": f"{first.duration_s:g}" if first.duration_s else "",
            "slo": ",".join(f"{name}={limit:g}" for name, limit in plan.slo.items()),
        }
        if self.scenario in ("output", "context"):
            values["prompts"] = ""
        for name, value in values.items():
            self.query_one(f"#field-{name}", Input).value = value
            self.query_one(f"#row-{name}").set_class(name not in USED[self.scenario], "hidden")

    def _phase(self) -> None:
        """Show the plan or the run."""
        self.query_one("#plan").set_class(not self._planning, "hidden")
        self.refresh_hints()
        if self._planning and self._question is None:
            self.query_one(f"#field-{USED[self.scenario][0]}", Input).focus()
        elif self._question is None:
            self.set_focus(None)
        if self.view is not None:
            self.draw(self.view)

    def draw(self, view: View) -> None:
        """The plan's sums, or the run's picture."""
        panel = self.query_one("#body", LinePanel)
        cells, rows = self.size.width - 2, panel.size.height or self.size.height - 2
        if self._planning:
            lines = self._plan_page(view, cells)
        elif self.control.state is not None and self.control.state.active:
            lines = running_page(self.control.state, view, cells, rows)
        else:
            assert self.control.state is not None
            lines = result_page(self.control.state, cells, rows)
        panel.set_lines(finish((Span(" "), *content) for content in lines))
        self.refresh_hints()

    def _plan_page(self, view: View, cells: int) -> list[Line]:
        chosen = SCENARIOS[self.scenario]
        place = f"F6: {NAMES.index(self.scenario) + 1} of {len(NAMES)}"
        scenario = [
            heading("Load test", cells, view.server.url if view.server else "no server"),
            line(
                Span("Scenario   ", "label"),
                Span(chosen.title, "bold"),
                Span(f"   {chosen.shows}  ", "dim"),
                Span(place, "key"),
            ),
        ]
        self.query_one("#scenario", LinePanel).set_lines(finish((Span(" "), *content) for content in scenario))
        try:
            plan = self._plan(view)
        except BadField as error:
            return [line(Span(" CHECK ", "low"), Span(f" {error}"))]
        lines = plan_lines(plan, self._estimate(plan, view), bench_commands(plan, _model(view)), cells)
        cap = view.server.max_num_seqs if view.server else None
        over = [level.name for level in plan.levels if cap is not None and level.concurrency > cap]
        if over:
            lines.append(
                line(Span(" NOTE ", "info"), Span(f" {', '.join(over)}: above max_num_seqs {cap}, measures the queue"))
            )
        if self._question is not None:
            lines += [line(), line(Span(f" {self._question[1]} ", "low"))]
        elif self._said:
            lines += [line(), line(Span(" NO ", "low"), Span(f" {self._said}"))]
        return lines

    def _plan(self, view: View) -> Plan:
        """The plan as typed; raises BadField."""
        if view.server is None:
            raise BadField("no server is selected")
        slo = self._text("slo")
        try:
            limits = parse_slo(slo) if slo else {}
        except BadLimit as error:
            raise BadField(str(error)) from None
        base = Plan(view.server.url, (), model=view.server.model, seed=self._seed(), slo=limits)
        options = Options(
            concurrencies=_integers(self._text("users"), "users"),
            num_prompts=_one(self._text("prompts"), "requests"),
            input_len=_one(self._text("input"), "prompt"),
            output_len=_one(self._text("output"), "answer"),
            request_rates=_numbers(self._text("rates"), "rate") if self.scenario == "rate" else None,
            duration_s=_number(self._text("seconds"), "seconds"),
        )
        plan = fit(build(self.scenario, base, options), view.server.max_model_len)
        problems = plan.problems()
        if problems:
            raise BadField("; ".join(problems))
        return plan

    def _seed(self) -> int:
        if not hasattr(self, "_drawn"):
            self._drawn = secrets.randbelow(2**31)  # a fresh seed per plan: no prefix cache has seen its prompts
        return self._drawn

    def _text(self, name: str) -> str:
        return self.query_one(f"#field-{name}", Input).value.strip() if name in USED[self.scenario] else ""

    @staticmethod
    def _estimate(plan: Plan, view: View) -> str:
        """About how long, from the speed the server shows now."""
        server = view.server
        itl = server.latency.itl.mean_s if server else None
        ttft = server.latency.ttft.mean_s if server else None
        if not itl or not ttft:
            return ""
        took = estimate_s(plan, Speed(max(200.0, plan.levels[0].input_len / ttft / 2), itl))
        return f", about {duration(took)} to {duration(2 * took)}" if took else ""

    # keys

    @on(Input.Changed)
    def _changed(self) -> None:
        if self._planning and self.view is not None:
            self._said = ""
            self.draw(self.view)

    def action_scenario(self, step: int) -> None:
        """The next scenario."""
        if self._planning and self._question is None:
            self.scenario = NAMES[(NAMES.index(self.scenario) + step) % len(NAMES)]
            self._fill()
            self._phase()

    def action_new_plan(self) -> None:
        """Back from an answer to a plan."""
        if not self.control.running:
            self._planning = True
            self.__dict__.pop("_drawn", None)
            self._phase()

    def action_start(self) -> None:
        """Check who may be loaded, then ask."""
        if self._planning and self._question is None and self.view is not None:
            try:
                plan = self._plan(self.view)
            except BadField:
                return
            self._ask(plan)

    @work(exclusive=True)
    async def _ask(self, plan: Plan) -> None:
        """The questions of the safety rules; resolving a name must not block the screen."""
        target, allow = self._target(), cast("LlmtopApp", self.app).settings.allow_remote_load
        has_key = target.key is not None or target.login is not None
        try:
            permission = await asyncio.to_thread(safety.ask, plan.url, has_key, allow)
        except (OSError, ValueError) as error:
            self._say(f"{target.host}: {error}")
            return
        if permission.confirm is safety.Confirm.REFUSED:
            self._say(" ".join(permission.reasons))
            return
        server = self.view.server if self.view else None
        busy = safety.busy_words(server.running, server.waiting) if server else None
        if permission.confirm is safety.Confirm.NAME:
            self._question = ("name", f"{permission.reasons[0]}" + (f" {busy}" if busy else ""))
            field = self.query_one("#answer", Input)
            field.remove_class("hidden")
            field.value = ""
            field.focus()
        else:
            words = busy or f"Send {plan.requests():,} requests to {target.host}:{target.port}?"
            self._question = ("yes", f"{words}   y yes   n no")
            self.set_focus(None)
        self._phase()

    def _target(self) -> Target:
        url = self.view.server.url if self.view and self.view.server else ""
        return cast("LlmtopApp", self.app).poller.target(url)

    def _say(self, text: str) -> None:
        self._said, self._question = text, None
        self._phase()

    def action_yes(self) -> None:
        """The answer that starts it."""
        if self._question is not None and self._question[0] == "yes":
            self._begin()

    def action_no(self) -> None:
        """Not started."""
        if self._question is not None:
            self._say("not started; nothing was sent")

    @on(Input.Submitted, "#answer")
    def _name_typed(self, event: Input.Submitted) -> None:
        event.input.add_class("hidden")
        if safety.typed_right(event.value, self._target().host):
            self._begin()
        else:
            self._say("not the name of the host; nothing was sent")

    def _begin(self) -> None:
        assert self.view is not None
        app = cast("LlmtopApp", self.app)
        server = self.view.server
        plan = self._plan(self.view)
        options = RunOptions.of_target(
            self._target(),
            max_num_seqs=server.max_num_seqs if server else None,
            snapshots=lambda: app.latest,
        )
        self._question, self._planning, self._said = None, False, ""
        self.control.start(plan, options)
        self._phase()

    def action_stop(self) -> None:
        """Stop the load at once."""
        self.control.stop()
        if self.view is not None:
            self.draw(self.view)

    def leave(self) -> bool:
        """Escape: first out of a question; True when the page is to be left."""
        if self._question is not None:
            self.query_one("#answer", Input).add_class("hidden")
            self.action_no()
            return False
        return True


def _model(view: View) -> str | None:
    return view.server.model if view.server else None


def _integers(text: str, what: str) -> tuple[int, ...] | None:
    values = tuple(_one(part, what) or 0 for part in text.replace(" ", "").split(",") if part)
    return values or None


def _numbers(text: str, what: str) -> tuple[float, ...] | None:
    values = tuple(_number(part, what) or 0.0 for part in text.replace(" ", "").split(",") if part)
    return values or None


def _one(text: str, what: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadField(f"{what}: {text!r} is no whole number above 0")
    return int(text)


def _number(text: str, what: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise BadField(f"{what}: {text!r} is no number above 0")
    return value
