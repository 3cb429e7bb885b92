"""The buffers of a GPT-2 training step, as a captured step has them: what the planner is judged on.

Shapes: B batch, T context, C channels, H heads, V vocabulary. Sizes are those of float32. Operations are numbered in
the order in which they run. Forward activations live until the backward operation that reads them last; temporaries
live from one operation to the next; gradients of weights live until the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blualloc import Buffer, LaneEvent

COMPUTE, COMMUNICATION = 0, 1


@dataclass
class Trace:
    buffers: list[Buffer] = field(default_factory=list)
    events: list[LaneEvent] = field(default_factory=list)


@dataclass
class _Recorder:
    uses: list[list[tuple[int, int]]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    clock: int = 0

    def new(self, elements: int) -> int:
        """A buffer that the current operation writes."""
        self.sizes.append(4 * elements)
        self.uses.append([(COMPUTE, self.clock)])
        return len(self.sizes) - 1

    def op(self, reads: list[int], *writes: int) -> list[int]:
        """One operation: reads buffers, writes new ones of the given numbers of elements."""
        written = [self.new(elements) for elements in writes]
        for buffer in reads:
            self.uses[buffer].append((COMPUTE, self.clock))
        self.clock += 1
        return written


def gpt2_step(
    layers: int = 12,
    channels: int = 768,
    heads: int = 12,
    context: int = 1024,
    batch: int = 4,
    vocabulary: int = 50304,
    *,
    recompute: bool = False,
    all_reduce: bool = False,
) -> Trace:
    """One step.

    `recompute`: LayerNorm and GELU outputs are made again in backward instead of being kept.
    `all_reduce`: the gradients of each layer are reduced on a second lane while backward goes on.
    """
    r = _Recorder()
    rows, wide = batch * context * channels, batch * context * 4 * channels
    stats = batch * context
    weights = [3 * channels * channels, channels * channels, 4 * channels * channels, 4 * channels * channels]
    (x,) = r.op([], rows)
    saved = []
    for _ in range(layers):
        normed, mean, rstd = r.op([x], rows, stats, stats)
        (qkv,) = r.op([normed], 3 * rows)
        attended, logsumexp = r.op([qkv], rows, batch * heads * context)
        (projected,) = r.op([attended], rows)
        (middle,) = r.op([x, projected], rows)
        normed2, mean2, rstd2 = r.op([middle], rows, stats, stats)
        (hidden,) = r.op([normed2], wide)
        (activated,) = r.op([hidden], wide)
        (out,) = r.op([activated], rows)
        (following,) = r.op([middle, out], rows)
        saved.append(
            (x, normed, mean, rstd, qkv, attended, logsumexp, middle, normed2, mean2, rstd2, hidden, activated)
        )
        x = following
    normed, mean, rstd = r.op([x], rows, stats, stats)
    # The head in chunks that leave only the gradient, never full logits.
    (dnormed,) = r.op([normed], rows)
    gradients = []
    (dhead,) = r.op([normed], channels * vocabulary)
    for _ in range(4):
        (logits,) = r.op([normed], batch * context // 4 * vocabulary)
        r.op([logits, dnormed, dhead])
    (dx,) = r.op([dnormed, x, mean, rstd], rows)
    gradients.append([dhead])
    for x, normed, mean, rstd, qkv, attended, logsumexp, middle, normed2, mean2, rstd2, hidden, activated in saved[
        ::-1
    ]:
        if recompute:
            (activated,) = r.op([hidden], wide)
        dactivated, dw_out = r.op([dx, activated], wide, weights[3])
        (dhidden,) = r.op([dactivated, hidden], wide)
        if recompute:
            (normed2,) = r.op([middle, mean2, rstd2], rows)
        dnormed2, dw_in = r.op([dhidden, normed2], rows, weights[2])
        (dmiddle,) = r.op([dnormed2, middle, mean2, rstd2, dx], rows)
        dattended, dw_proj = r.op([dmiddle, attended], rows, weights[1])
        (delta,) = r.op([dattended, attended], batch * heads * context)
        (dqkv,) = r.op([qkv, dattended, logsumexp, delta], 3 * rows)
        if recompute:
            (normed,) = r.op([x, mean, rstd], rows)
        dnormed1, dw_qkv = r.op([dqkv, normed], rows, weights[0])
        (dx,) = r.op([dnormed1, x, mean, rstd, dmiddle], rows)
        gradients.append([dw_out, dw_in, dw_proj, dw_qkv])
    r.op([dx, dhead])
    trace = Trace()
    if all_reduce:
        for turn, group in enumerate(gradients):
            ready = max(r.uses[g][0][1] for g in group)
            trace.events.append(LaneEvent(COMPUTE, ready, COMMUNICATION, turn))
            for g in group:
                r.uses[g].append((COMMUNICATION, turn))
        trace.events.append(LaneEvent(COMMUNICATION, len(gradients) - 1, COMPUTE, r.clock))
    (norm,) = r.op([g for group in gradients for g in group], 1)
    for group in gradients:
        r.op([norm, *group])
    trace.buffers = [Buffer(size, uses) for size, uses in zip(r.sizes, r.uses, strict=True)]
    return trace
