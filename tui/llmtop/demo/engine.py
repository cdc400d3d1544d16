"""A continuous-batching engine in virtual time: pure, deterministic, no clock of its own.

It schedules as vLLM's V1 scheduler does: running requests first, then waiting ones first come first served,
within a token budget per step (so long prompts are read in chunks); KV blocks are taken as tokens need
them, and when they run out the newest running request is preempted and later recomputed. One step is
`begin` (what runs, and until when) and `finish` (what came out): between the two a request may be aborted
or submitted. A diffusion model writes a whole canvas in several steps and puts it out at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from llmtop.demo.blocks import NULL_BLOCKS, BlockPool, block_hashes
from llmtop.demo.counters import Counters, Effort, Gauges
from llmtop.demo.profile import Canvas, MachineProfile
from llmtop.demo.timing import Curve, StepModel, Work


@dataclass(frozen=True, slots=True)
class Request:
    """A generation request: token ids in, at most `max_tokens` out; `stop_after` is where the model itself
    would end (None: never, as with ignore_eos). `arrival` is on the engine's clock, in seconds.
    """

    id: str
    prompt: Sequence[int]
    max_tokens: int
    arrival: float
    stop_after: int | None = None
    salt: Hashable = None

    @property
    def output_tokens(self) -> int:
        """Tokens it will get."""
        return self.max_tokens if self.stop_after is None else min(self.max_tokens, self.stop_after)

    @property
    def finish_reason(self) -> str:
        """Why it will end."""
        ends_itself = self.stop_after is not None and self.stop_after <= self.max_tokens
        return "stop" if ends_itself else "length"


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one request: how many, after how many; the reason with the last ones."""

    id: str
    first: int
    count: int
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class InBatch:
    """A request in the batch: tokens generated so far, tokens it will get, tokens it holds in the KV cache."""

    id: str
    generated: int
    wanted: int
    held: int


@dataclass(slots=True)
class _Sequence:
    request: Request
    hashes: list[int]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose KV is in the cache
    generated: int = 0
    cached: int = 0  # prompt tokens found in the prefix cache at first admission
    remembered: int = 0  # blocks put into the prefix cache
    preemptions: int = 0
    canvas_left: int = 0  # denoising steps to the end of this canvas
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    gone: bool = False

    @property
    def total(self) -> int:
        return len(self.request.prompt) + self.generated

    @property
    def prefilling(self) -> bool:
        return self.generated == 0 or self.total - self.computed > 1


@dataclass(frozen=True, slots=True)
class Step:
    """One step under way: from `start` to `end`, with the tokens each sequence computes."""

    start: float
    end: float
    work: Work
    items: tuple[tuple[_Sequence, int], ...]


class Engine:
    """One engine of `profile`, `speed` times faster than the profile says."""

    def __init__(self, profile: MachineProfile, speed: float = 1.0) -> None:
        config = profile.engine
        self.config = config
        self.pool = BlockPool(config.kv_tokens // config.block_size + NULL_BLOCKS, config.block_size)
        self.counters = Counters(profile.model.max_model_len)
        self.gauges = Gauges()
        self.effort = Effort()
        self.stepped = False
        self._canvas: Canvas | None = profile.canvas
        self._canvas_steps = Curve(profile.canvas.steps, flat_end=True) if profile.canvas else None
        self._model = StepModel(profile.timing, speed)
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._known: dict[str, _Sequence] = {}
        self._in_step = False

    @property
    def running(self) -> int:
        """Requests in the batch now."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests queued now, preempted ones included."""
        return len(self._waiting)

    def in_batch(self) -> list[InBatch]:
        """The requests in the batch now, oldest first."""
        return [InBatch(s.request.id, s.generated, s.request.output_tokens, s.computed) for s in self._running]

    def submit(self, request: Request) -> None:
        """Queues a request; raises ValueError for one that could never run or an id in use."""
        longest = len(request.prompt) + request.max_tokens + (self._canvas.tokens if self._canvas else 0)
        if not request.prompt or request.max_tokens < 1 or self.pool.needed(longest) >= self.pool.total:
            raise ValueError(f"request {request.id}: {longest} tokens cannot be served")
        if request.id in self._known:
            raise ValueError(f"request id {request.id} is in use")
        sequence = _Sequence(request, block_hashes(request.prompt, self.pool.block_size, request.salt))
        self._known[request.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> bool:
        """Drops a request and frees its blocks; False when it is not known. vLLM counts it nowhere."""
        sequence = self._known.pop(request_id, None)
        if sequence is None:
            return False
        sequence.gone = True
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._release(sequence)
        if not self._in_step:
            self._report()
        return True

    def begin(self, now: float) -> Step | None:
        """Schedules one step at `now`; None when there is nothing to do."""
        items: list[tuple[_Sequence, int]] = []
        wake = 0.0 if self._running else self._model.wake_s
        budget = self.config.max_num_batched_tokens
        preempted, budget = self._schedule_running(items, budget)
        if not preempted:
            self._admit(items, budget, now)
        if not items:
            return None
        work = self._work(items)
        self._in_step = True
        return Step(now, now + wake + self._model.seconds(work), work, tuple(items))

    def finish(self, step: Step) -> list[Output]:
        """Applies a step at its end: tokens out, counters and gauges moved, finished requests' blocks
        freed.
        """
        self._in_step = False
        outputs: list[Output] = []
        prompt_before = self.counters.prompt_tokens
        for sequence, tokens in step.items:
            if not sequence.gone:
                self._advance(sequence, tokens, step.end, outputs)
        if outputs:
            prompts = self.counters.prompt_tokens - prompt_before
            self.counters.iteration.observe(prompts + sum(o.count for o in outputs))
        self._spend(step)
        self._report()
        return outputs

    # scheduling

    def _schedule_running(self, items: list[tuple[_Sequence, int]], budget: int) -> tuple[bool, int]:
        """Gives every running request its tokens, preempting the newest ones when blocks run out."""
        preempted = False
        i = 0
        while i < len(self._running) and budget > 0:
            sequence = self._running[i]
            tokens = min(self._wanted(sequence), budget)
            while not self._grow(sequence, tokens):
                preempted = True
                victim = self._running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return True, budget
            items.append((sequence, tokens))
            budget -= tokens
            i += 1
        return preempted, budget

    def _admit(self, items: list[tuple[_Sequence, int]], budget: int, now: float) -> None:
        """Takes waiting requests in order while budget, places and blocks for their whole prompt last."""
        while self._waiting and budget > 0 and len(self._running) < self.config.max_num_seqs:
            sequence = self._waiting[0]
            usable = sequence.hashes[: (sequence.total - 1) // self.pool.block_size]
            hit = self.pool.cached(usable)
            needed = self.pool.needed(sequence.total) - len(hit) + self.pool.reclaim(hit)
            if needed > self.pool.free:
                return
            self._waiting.popleft()
            self._start(sequence, hit, now)
            tokens = min(self._wanted(sequence), budget)
            self._grow(sequence, tokens)
            items.append((sequence, tokens))
            budget -= tokens

    def _start(self, sequence: _Sequence, hit: list[int], now: float) -> None:
        self.pool.hold(hit)
        sequence.blocks = list(hit)
        sequence.computed = len(hit) * self.pool.block_size
        sequence.remembered = len(hit)
        self._running.append(sequence)
        if sequence.scheduled is None:
            sequence.scheduled = max(now, sequence.request.arrival)
            sequence.cached = sequence.computed
            self.counters.prefix_queries += len(sequence.request.prompt)
            self.counters.prefix_hits += sequence.cached

    def _wanted(self, sequence: _Sequence) -> int:
        """Tokens the sequence could compute in this step."""
        missing = sequence.total - sequence.computed
        return missing if self._canvas is None or missing else self._canvas.tokens

    def _grow(self, sequence: _Sequence, tokens: int) -> bool:
        """Takes the blocks for `tokens` more tokens; False when too few are free."""
        missing = self.pool.needed(sequence.computed + tokens) - len(sequence.blocks)
        if missing > self.pool.free:
            return False
        if missing > 0:
            sequence.blocks += self.pool.take(missing)
        return True

    def _preempt(self, sequence: _Sequence) -> None:
        """Back to the head of the queue; its KV is recomputed (or found in the prefix cache) when it runs
        again.
        """
        self._release(sequence)
        sequence.computed = 0
        sequence.canvas_left = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(sequence)

    def _release(self, sequence: _Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []

    def _work(self, items: list[tuple[_Sequence, int]]) -> Work:
        chunks: list[tuple[int, int]] = []
        decodes = context = 0
        for sequence, tokens in items:
            if self._decoding(sequence):
                decodes += 1
                context += sequence.computed
            else:
                chunks.append((sequence.computed, tokens))
        return Work(tuple(chunks), decodes, context, self.pool.usage)

    def _decoding(self, sequence: _Sequence) -> bool:
        if self._canvas is not None:
            return sequence.computed == sequence.total
        return not sequence.prefilling

    # results

    def _advance(self, sequence: _Sequence, tokens: int, now: float, outputs: list[Output]) -> None:
        if self._canvas is not None and sequence.computed == sequence.total:
            self._denoise(sequence, now, outputs)
            return
        sequence.computed += tokens
        self._remember(sequence)
        if sequence.computed == sequence.total and self._canvas is None:
            self._emit(sequence, 1, now, outputs)

    def _denoise(self, sequence: _Sequence, now: float, outputs: list[Output]) -> None:
        """One denoising step of a canvas; the last one puts its tokens out."""
        assert self._canvas is not None
        assert self._canvas_steps is not None
        wanted = min(self._canvas.tokens, sequence.request.output_tokens - sequence.generated)
        if sequence.canvas_left == 0:
            sequence.canvas_left = max(1, round(self._canvas_steps(wanted)))
        sequence.canvas_left -= 1
        self.counters.denoising_steps += 1
        self.counters.canvas_positions += self._canvas.tokens
        if sequence.canvas_left == 0:
            sequence.computed += wanted
            self.counters.committed_tokens += wanted
            self._emit(sequence, wanted, now, outputs)

    def _remember(self, sequence: _Sequence) -> None:
        """Puts the prompt blocks that are full now into the prefix cache."""
        full = min(sequence.computed // self.pool.block_size, len(sequence.hashes))
        for i in range(sequence.remembered, full):
            self.pool.remember(sequence.blocks[i], sequence.hashes[i])
        sequence.remembered = max(full, sequence.remembered)

    def _emit(self, sequence: _Sequence, count: int, now: float, outputs: list[Output]) -> None:
        request = sequence.request
        self._count_output(sequence, count, now)
        first = sequence.generated
        sequence.generated += count
        sequence.last_token = now
        done = sequence.generated >= request.output_tokens
        outputs.append(Output(request.id, first, count, request.finish_reason if done else None))
        if done:
            self._running.remove(sequence)
            del self._known[request.id]
            self._release(sequence)
            self._count_finish(sequence, now)

    def _count_output(self, sequence: _Sequence, count: int, now: float) -> None:
        counters = self.counters
        counters.generation_tokens += count
        if sequence.last_token is not None:
            counters.itl.observe(now - sequence.last_token)
            return
        sequence.first_token = now
        counters.ttft.observe(now - sequence.request.arrival)
        counters.prompt_tokens += len(sequence.request.prompt)
        counters.cached_tokens += sequence.cached

    def _count_finish(self, sequence: _Sequence, now: float) -> None:
        request, counters = sequence.request, self.counters
        assert sequence.scheduled is not None
        assert sequence.first_token is not None
        decode = now - sequence.first_token
        counters.finished[request.finish_reason] += 1
        counters.e2e.observe(now - request.arrival)
        counters.queue.observe(sequence.scheduled - request.arrival)
        counters.prefill.observe(sequence.first_token - sequence.scheduled)
        counters.decode.observe(decode)
        counters.inference.observe(now - sequence.scheduled)
        counters.tpot.observe(decode / (sequence.generated - 1) if sequence.generated > 1 else 0.0)
        counters.prompt_len.observe(len(request.prompt))
        counters.generation_len.observe(sequence.generated)
        counters.max_generation.observe(sequence.generated)
        counters.param_max_tokens.observe(request.max_tokens)
        counters.param_n.observe(1)
        counters.preempted.observe(sequence.preemptions)
        counters.kv_computed.observe(len(request.prompt) - sequence.cached)

    def _spend(self, step: Step) -> None:
        seconds = step.end - step.start
        self.effort.steps += 1
        self.effort.busy_s += seconds
        if step.work.chunks:
            self.effort.prefill_s += seconds

    def _report(self) -> None:
        self.stepped = True
        self.gauges = Gauges(len(self._running), len(self._waiting), self.pool.usage)
