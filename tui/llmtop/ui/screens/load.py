"""The load screen: a plan to edit, the run, the answer, two runs side by side. Opening it starts nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from textual import on, work
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, Label
from textual.widgets.input import Selection

from llmtop.contract.settings import Target
from llmtop.contract.units import UNKNOWN
from llmtop.load import safety
from llmtop.load.earlier import Earlier, earlier_run
from llmtop.load.files import state_dir
from llmtop.load.plan import Plan
from llmtop.load.results import RunResult
from llmtop.load.runner import RunOptions
from llmtop.load.scenarios import SCENARIOS, bench_commands
from llmtop.ui.keys import LOAD_KEYS, bindings
from llmtop.ui.load_form import FIELDS, NAMES, BadField, cut_note, defaults, estimate, plan_of, used
from llmtop.ui.load_state import LoadControl
from llmtop.ui.panels.load import plan_lines, running_page
from llmtop.ui.panels.load_answer import comparison_page, result_page
from llmtop.ui.panels.view import View, heading
from llmtop.ui.screens.base import MOST_TYPED, ViewScreen, finish
from llmtop_widgets import glyphs
from llmtop_widgets.linepanel import LinePanel
from llmtop_widgets.statusbar import KeyBar, KeyHint
from llmtop_widgets.text import Line, Span, crop, line, spread, width, wrap

if TYPE_CHECKING:
    from llmtop.ui.app import LlmtopApp

LIST_ROWS = 34  # from here on the scenarios are a list
CLICKED: Mapping[str, str] = {
    **{row.shown or row.keys[0]: row.action for row in LOAD_KEYS},
    "Tab": "focus_next",
    "Esc": "app.back",
    "F10": "app.leave",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What a person must say before the start: yes, or the name of the host."""

    kind: Literal["yes", "name"]
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A plan waiting for its answers; what is started is this plan and nothing typed since."""

    plan: Plan
    target: Target
    questions: tuple[Question, ...]
    cut: str | None = None  # what of it does not fit the model


class LoadScreen(ViewScreen):
    """Plan, run, answer of a load test."""

    name_in_keys = "load"
    AUTO_FOCUS = ""  # it would choose a hidden field, which then swallowed the keys of a run
    BINDINGS: ClassVar[list[BindingType]] = list(bindings(LOAD_KEYS))

    def __init__(self) -> None:
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-normal")]
        self.scenario = NAMES[0]
        self._planning = True
        self._asked: Asked | None = None
        self._earlier: Earlier | None = None
        self._said = ""
        self._seed = _new_seed()

    @property
    def control(self) -> LoadControl:
        """The run, owned by the app: it goes on when this page is left."""
        return self._app.load

    @property
    def _app(self) -> LlmtopApp:
        return cast("LlmtopApp", self.app)

    @property
    def _result(self) -> RunResult | None:
        state = self.control.state
        return state.result if state is not None else None

    def body(self) -> Iterable[Widget]:
        """The form of the plan, and the panel that is everything else."""
        values = defaults(self.scenario)
        with Vertical(id="plan"):
            yield LinePanel(id="scenario")
            for name, label, hint in FIELDS:
                with Horizontal(classes="field", id=f"row-{name}"):
                    yield Label(label, classes="label")
                    yield Input(values[name], id=f"field-{name}", compact=True, max_length=MOST_TYPED)
                    yield Label(hint, classes="hint")
        yield LinePanel(id="body")
        yield Input(id="answer", compact=True, classes="hidden", max_length=MOST_TYPED)

    def hints(self) -> list[KeyHint]:
        """What can be done here, by phase."""
        if self._asked is not None:
            keys = [KeyHint("y", "Yes"), KeyHint("n", "No")] if self._asked.questions[0].kind == "yes" else []
        elif self._planning:
            keys = [KeyHint("F5", "Start"), KeyHint("F6", "Scenario", 1), KeyHint("Tab", "Field", 2)]
            keys.append(KeyHint("F9", "Copy", 3))
        elif self.control.state is not None and self.control.state.active:
            keys = [KeyHint("F8", "Stop")]
        elif self._earlier is not None:
            keys = [KeyHint("F7", "Answer")]
        else:
            keys = [KeyHint("F7", "New plan")] + ([KeyHint("c", "Compare", 1)] if self._result else [])
        return [*keys, KeyHint("Esc", "Back"), KeyHint("F10", "Quit", 1)]

    def begin(self) -> None:
        """The plan, or the run that goes on."""
        self._planning = self.control.state is None
        self._show_fields()
        self._phase()

    def _show_fields(self) -> None:
        """The fields that the scenario uses."""
        for name, _, _ in FIELDS:
            self.query_one(f"#row-{name}").set_class(name not in used(self.scenario), "hidden")

    def _phase(self) -> None:
        """Show the form, the question, or the run."""
        asked = self._asked
        named = asked is not None and asked.questions[0].kind == "name"
        self.query_one("#plan").set_class(not self._planning or asked is not None, "hidden")
        field = self.query_one("#answer", Input)
        field.set_class(not named, "hidden")
        if named:
            field.value = ""
            field.focus()
        elif self._planning and asked is None:
            if self.focused is None:
                self._field(used(self.scenario)[0]).focus()
        else:
            self.set_focus(None)
        if self.view is not None:
            self.draw(self.view)

    def draw(self, view: View) -> None:
        """The plan's sums, or the run's picture."""
        panel = self.query_one("#body", LinePanel)
        cells, rows = self.size.width - 2, panel.size.height or self.size.height - 2
        panel.set_lines(finish((Span(" "), *content) for content in self._page(view, cells, rows)))
        self.refresh_hints()

    def _page(self, view: View, cells: int, rows: int) -> list[Line]:
        state = self.control.state
        if self._asked is not None:
            return self._question_page(self._asked, view, cells)
        if self._planning or state is None:
            return self._plan_page(view, cells)
        if state.active:
            return running_page(state, view, cells, rows)
        if self._earlier is not None:
            return comparison_page(state, self._earlier, cells, rows)
        return result_page(state, view, cells, rows, self._said)

    def _scenario_lines(self, view: View, cells: int, rows: int) -> list[Line]:
        """The scenarios as a list with what each shows and takes; where there is no room, the chosen one."""
        head = heading("Load test", cells, view.server.url if view.server else "no server")
        if rows < LIST_ROWS:
            chosen = SCENARIOS[self.scenario]
            place = f"F6: {NAMES.index(self.scenario) + 1} of {len(NAMES)}"
            label = (Span("Scenario   ", "label"), Span(chosen.title, "bold"), Span(f"  {place}  ", "key"))
            return [head, line(*label, Span(chosen.shows, "dim"))]
        return [head, *(self._scenario_line(name, view, cells) for name in NAMES), ()]

    def _scenario_line(self, name: str, view: View, cells: int) -> Line:
        chosen, row = name == self.scenario, SCENARIOS[name]
        label = "Scenario   " if name == NAMES[0] else " " * 11
        sign = f"{glyphs.current().cursor} " if chosen else "  "
        style, quiet = ("bold", "") if chosen else ("", "dim")
        left = line(Span(label, "label"), Span(f"{sign}{row.title:<18}", style), Span(f" {row.shows}", quiet))
        right = line(Span(self._takes(name, view), quiet or "value"))
        return spread(crop(left, max(0, cells - width(right) - 1)), right, cells)

    def _takes(self, name: str, view: View) -> str:
        """About how long a scenario takes as it stands in the table; empty where that is not known."""
        if view.server is None:
            return ""
        try:
            plan = plan_of(name, defaults(name), view.server, self._seed)
        except BadField:
            return ""
        text = self._estimate(plan, view)
        return "" if text.startswith(UNKNOWN) else text

    def _plan_page(self, view: View, cells: int) -> list[Line]:
        scenario = self._scenario_lines(view, cells, self.size.height)
        self.query_one("#scenario", LinePanel).styles.height = len(scenario)
        self.query_one("#scenario", LinePanel).set_lines(finish((Span(" "), *content) for content in scenario))
        said = [line(Span(" NOTE ", "info"), Span(f" {text}")) for text in wrap(self._said, cells - 7)]
        try:
            plan = self._plan(view)
        except BadField as error:
            return [*said, *(line(Span(" CHECK ", "low"), Span(f" {text}")) for text in wrap(str(error), cells - 8))]
        cut = self._cut(cut_note(self.scenario, self._texts(), view.server), cells)
        notes = said + cut + self._above_cap(plan, view)
        return notes + plan_lines(plan, self._estimate(plan, view), bench_commands(plan), cells)

    def _question_page(self, asked: Asked, view: View, cells: int) -> list[Line]:
        """The plan's sums and the question, alone on the page."""
        question = asked.questions[0]
        keys = "y yes   n no" if question.kind == "yes" else "Enter: start   Esc: no"
        return [
            *self._scenario_lines(view, cells, 0),
            *plan_lines(asked.plan, self._estimate(asked.plan, view), (), cells),
            *self._cut(asked.cut, cells),
            *self._above_cap(asked.plan, view),
            (),
            *(line(Span(text, "low")) for text in wrap(question.text, cells)),
            line(Span(keys, "key")),
        ]

    @staticmethod
    def _cut(words: str | None, cells: int) -> list[Line]:
        """What does not fit the model, said before the start."""
        return [line(Span(" NOTE ", "info"), Span(f" {text}")) for text in wrap(words or "", cells - 7)]

    @staticmethod
    def _above_cap(plan: Plan, view: View) -> list[Line]:
        cap = view.server.max_num_seqs if view.server else None
        over = [level.name for level in plan.levels if cap is not None and level.concurrency > cap]
        words = f" {', '.join(over)}: above max_num_seqs {cap}, measures the queue"
        return [line(Span(" NOTE ", "info"), Span(words))] if over else []

    def _field(self, name: str) -> Input:
        return self.query_one(f"#field-{name}", Input)

    def _plan(self, view: View) -> Plan:
        """The plan as typed; raises BadField."""
        return plan_of(self.scenario, self._texts(), view.server, self._seed)

    def _texts(self) -> dict[str, str]:
        return {name: self._field(name).value for name, _, _ in FIELDS}

    def _estimate(self, plan: Plan, view: View) -> str:
        result = self._result
        known = result.levels if result is not None and result.url == plan.url else ()
        return estimate(plan, view.server, known)

    # keys

    @on(KeyBar.Pressed)
    async def _hint_clicked(self, event: KeyBar.Pressed) -> None:
        event.stop()
        await self.app.run_action(CLICKED[event.key], self)

    @on(Input.Changed)
    def _changed(self) -> None:
        if self._planning and self._asked is None and self.view is not None:
            self._said = ""
            self.draw(self.view)

    def action_scenario(self, step: int) -> None:
        """The next scenario."""
        if self._planning and self._asked is None:
            self.scenario = NAMES[(NAMES.index(self.scenario) + step) % len(NAMES)]
            self._said = ""
            for name, value in defaults(self.scenario).items():
                field = self._field(name)
                field.value, field.selection = value, Selection(0, len(value))  # typing replaces it
            self._show_fields()
            self.set_focus(None)
            self._phase()

    def action_new_plan(self) -> None:
        """Back from a comparison to the answer, from an answer to a plan."""
        self._said = ""
        if self._earlier is not None:
            self._earlier = None
        elif not self.control.running and not self._planning:
            self._planning, self._seed = True, _new_seed()
        self._phase()

    def action_copy(self) -> None:
        """The equal commands of vLLM into the terminal's clipboard."""
        if self._planning and self._asked is None and self.view is not None:
            try:
                commands = bench_commands(self._plan(self.view))
            except BadField:
                return
            self.app.copy_to_clipboard("\n".join(commands))
            self._say(f"{len(commands)} commands for the terminal's clipboard")

    @work(exclusive=True)
    async def action_compare(self) -> None:
        """This run beside the latest one before it of the same scenario."""
        result = self._result
        if self._planning or result is None or self._earlier is not None:
            return
        self._earlier = await asyncio.to_thread(earlier_run, state_dir() / "runs", result)
        self._say("" if self._earlier else f"no earlier run of {result.scenario!r} with a level of this one")

    def action_start(self) -> None:
        """Check who may be loaded, then ask."""
        if self._planning and self._asked is None and self.view is not None:
            try:
                plan = self._plan(self.view)
                cut = cut_note(self.scenario, self._texts(), self.view.server)
            except BadField:
                return
            self._ask(plan, self._app.poller.target(plan.url), cut)

    @work(exclusive=True)
    async def _ask(self, plan: Plan, target: Target, cut: str | None) -> None:
        """The questions of the safety rules; resolving a name must not block the screen."""
        server = self.view.server if self.view else None
        if server is not None and server.via == "ssh" and target.via is None:
            self._say(f"ssh alone leads to {target.host}, and not from here: load it where llmtop ssh://… runs")
            return
        has_key, allow = target.key is not None or target.login is not None, self._app.settings.allow_remote_load
        try:
            permission = await asyncio.to_thread(safety.ask, plan.url, has_key, allow, target.node)
        except (OSError, ValueError) as error:
            self._say(f"{target.host}: {error}")
            return
        if permission.confirm is safety.Confirm.REFUSED:
            self._say(" ".join(permission.reasons))
            return
        if permission.confirm is safety.Confirm.NAME:
            questions = [Question("name", permission.reasons[0])]
        else:
            questions = [Question("yes", f"Send {plan.requests():,} requests to {target.host}:{target.port}?")]
        busy = safety.busy_words(server.running, server.waiting) if server else None
        questions += [Question("yes", busy)] if busy else []
        self._asked, self._said = Asked(plan, target, tuple(questions), cut), ""
        self._phase()

    def _say(self, text: str) -> None:
        self._said, self._asked = text, None
        self._phase()

    def action_yes(self) -> None:
        """Yes to the question."""
        if self._asked is not None and self._asked.questions[0].kind == "yes":
            self._answered(self._asked)

    def action_no(self) -> None:
        """Not started."""
        if self._asked is not None:
            self._say("not started; nothing was sent")

    @on(Input.Submitted, "#answer")
    def _name_typed(self, event: Input.Submitted) -> None:
        if self._asked is None:
            return
        if safety.typed_right(event.value, self._asked.target.host):
            self._answered(self._asked)
        else:
            self._say("not the name of the host; nothing was sent")

    def _answered(self, asked: Asked) -> None:
        """The next question, or the start."""
        left = asked.questions[1:]
        self._asked = replace(asked, questions=left) if left else None
        if not left:
            self._begin(asked)
        self._phase()

    def _begin(self, asked: Asked) -> None:
        app, server = self._app, self.view.server if self.view else None
        options = RunOptions.of_target(
            asked.target,
            max_num_seqs=server.max_num_seqs if server is not None and server.url == asked.plan.url else None,
            snapshots=lambda: app.latest,
        )
        self._planning, self._earlier = False, None
        self.control.start(asked.plan, options)

    def action_stop(self) -> None:
        """Stop the load at once."""
        self.control.stop()
        if self.view is not None:
            self.draw(self.view)

    def leave(self) -> bool:
        """Escape: first out of a question or a comparison; True when the page is to be left."""
        if self._asked is not None:
            self.action_no()
        elif self._earlier is not None:
            self.action_new_plan()
        else:
            return True
        return False


def _new_seed() -> int:
    """A fresh one per plan: no prefix cache has seen its prompts."""
    return secrets.randbelow(2**31)
