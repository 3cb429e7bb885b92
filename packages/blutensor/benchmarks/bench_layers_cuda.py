"""Layers, losses and optimizers on one GPU beside PyTorch, and beside the copy bandwidth of the same run.

    python benchmarks/bench_layers_cuda.py [--only layer_norm ...] [--out FILE] [--commit NAME]

The rules and the names are those of bench_memory_cuda.py. Embeddings see GPT-2's vocabulary with ids as frequent as
words are (Zipf); the optimizers have the tensors of GPT-2 124M, matrices with weight decay and vectors without, and are
replayed as graphs on both sides.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from bench_memory_cuda import BYTES, DTYPES, SETS, Call, Work, captured_calls, main, operands

import blutensor as bt
from blutensor import _operators as ops
from blutensor._operators import private

VOCABULARY, CHANNELS, TOKENS = 50304, 768, 65536
f = torch.nn.functional


def normalised(dtype: str, rows: int, columns: int) -> Iterator[Work]:
    """layer_norm over rows of `columns`, and its gradients added to buffers, as a training step does."""
    xs, ours = operands(dtype, rows, columns)
    gs, our_gs = operands(dtype, rows, columns)
    (w, b), (our_w, our_b) = (tuple(next(t) for _ in range(2)) for t in operands(dtype, columns, sets=2))
    moved = rows * columns * DTYPES[dtype].itemsize
    name = f"kernel.layer_norm_{columns}.{dtype}"
    yield Work(
        f"{name}.fwd",
        2 * moved,
        lambda: ops.layer_norm(next(ours), our_w, our_b),
        lambda: f.layer_norm(next(xs), (columns,), w, b),
    )
    statistics = [ops.layer_norm(x, our_w, our_b)[1:] for x in (next(ours) for _ in range(SETS))]
    mean, rstd = statistics[0]
    their_mean, their_rstd = (torch.from_dlpack(t)[:, None] for t in (mean, rstd))
    sums = [bt.zeros((columns,), device="cuda") for _ in range(2)]
    backward = private("layer_norm_backward_")
    yield Work(
        f"{name}.bwd",
        3 * moved,
        lambda: backward(
            next(our_gs), next(ours), mean, rstd, *sums, our_w, accumulate_weight=True, accumulate_bias=True
        ),
        lambda: torch.ops.aten.native_layer_norm_backward(
            next(gs), next(xs), (columns,), their_mean, their_rstd, w, b, [True] * 3
        ),
    )


def layer_norm(dtype: str) -> Iterator[Work]:
    """The widths of GPT-2 124M, 350M and 1558M."""
    for columns in (768, 1024, 1600):
        yield from normalised(dtype, BYTES // DTYPES[dtype].itemsize // columns, columns)


def token_ids() -> list[torch.Tensor]:
    """SETS batches of ids; rank r of the vocabulary is drawn in proportion to 1 / (r + 2.7), ranks shuffled."""
    ranks = torch.arange(VOCABULARY, device="cuda", dtype=torch.float64)
    shuffled = torch.randperm(VOCABULARY, device="cuda")
    drawn = [torch.multinomial(1 / (ranks + 2.7), TOKENS, replacement=True) for _ in range(SETS)]
    return [shuffled[ids] for ids in drawn]


def embedding(dtype: str) -> Iterator[Work]:
    """Rows of the table, and their gradients: overwriting a float32 buffer, and added to it."""
    size = DTYPES[dtype].itemsize
    ids = token_ids()
    theirs, ours = iter_forever(ids), iter_forever([bt.from_dlpack(i.int()) for i in ids])
    table, our_table = (next(t) for t in operands(dtype, VOCABULARY, CHANNELS, sets=1))
    gs, our_gs = operands(dtype, TOKENS, CHANNELS)
    moved = TOKENS * CHANNELS * size
    yield Work(
        f"kernel.embedding.{dtype}.fwd",
        2 * moved,
        lambda: ops.embedding(next(ours), our_table),
        lambda: f.embedding(next(theirs), table),
    )
    occurring = sum(int(i.unique().numel()) for i in ids) // SETS
    buffer = bt.zeros((VOCABULARY, CHANNELS), device="cuda")
    backward = private("embedding_backward_")

    def peer() -> object:
        return torch.ops.aten.embedding_dense_backward(next(gs), next(theirs), VOCABULARY, -1, False)

    for name, accumulate, rows in (
        ("embedding", False, VOCABULARY),
        ("embedding_add", True, 2 * occurring),
    ):

        def call(accumulate: bool = accumulate) -> object:
            return backward(buffer, next(our_gs), next(ours), accumulate)

        yield Work(f"kernel.{name}.{dtype}.bwd", moved + rows * CHANNELS * 4, call, peer)


def iter_forever(items: list) -> Iterator:  # type: ignore[type-arg]
    """The items in turn."""
    while True:
        yield from items


def losses(dtype: str) -> Iterator[Work]:
    """Softmax and cross entropy of GPT-2's vocabulary."""
    size = DTYPES[dtype].itemsize
    rows = BYTES // size // VOCABULARY
    xs, ours = operands(dtype, rows, VOCABULARY)
    targets = torch.randint(0, VOCABULARY, (rows,), device="cuda")
    our_targets = bt.from_dlpack(targets)
    moved = rows * VOCABULARY * size
    yield Work(
        f"kernel.softmax.{dtype}.fwd", 2 * moved, lambda: ops.softmax(next(ours)), lambda: f.softmax(next(xs), -1)
    )
    yield Work(
        f"kernel.cross_entropy.{dtype}.fwd",
        moved,
        lambda: ops.cross_entropy(next(ours), our_targets),
        lambda: f.cross_entropy(next(xs), targets),
    )
    loss, top, log_sum = ops.cross_entropy(next(ours), our_targets)
    backward = private("cross_entropy_backward")
    leaves = [x.detach().requires_grad_() for x in (next(xs) for _ in range(SETS))]
    graphs = iter_forever([(f.cross_entropy(x, targets), x) for x in leaves])

    def peer() -> object:
        value, x = next(graphs)
        return torch.autograd.grad(value, x, retain_graph=True)

    yield Work(
        f"kernel.cross_entropy.{dtype}.bwd",
        2 * moved,
        lambda: backward(loss, next(ours), our_targets, top, log_sum),
        peer,
    )


def shapes_of_124m() -> list[tuple[int, ...]]:
    """GPT-2 124M's parameters."""
    c = CHANNELS
    block = [(c,), (c,), (3 * c, c), (3 * c,), (c, c), (c,), (c,), (c,), (4 * c, c), (4 * c,), (c, 4 * c), (c,)]
    return [(VOCABULARY, c), (1024, c), *(block * 12), (c,), (c,)]


def optimizers(dtype: str) -> Iterator[Work]:
    """One step over all parameters; "bf16" has float32 masters and gradients, and PyTorch float32 parameters."""
    shapes = shapes_of_124m()
    numel = sum(int(torch.Size(s).numel()) for s in shapes)
    params = [torch.randn(s, device="cuda").requires_grad_() for s in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    groups = [
        {"params": [p for p in params if (p.ndim > 1) == matrices], "weight_decay": 0.1 if matrices else 0.0}
        for matrices in (True, False)
    ]
    peer = torch.optim.AdamW(groups, lr=1e-4, fused=True, capturable=True)
    masters = [bt.from_dlpack(p.detach().clone()) for p in params]
    grads = [bt.from_dlpack(p.grad) for p in params]
    moments = [[bt.zeros(s, device="cuda") for s in shapes] for _ in range(2)]
    scalars = [bt.full((), v, device="cuda") for v in (1e-4, 0.5, 0.0)]
    step = bt.full((), 3, dtype="int64", device="cuda")
    adamw = private("adamw_")
    mixed = dtype == "bf16"
    written = [m.astype("bfloat16") for m in masters] if mixed else masters
    lists = [written, grads, *moments, [scalars[0]] * len(shapes)]
    options = {
        "grad_scale": scalars[1],
        "skip": scalars[2],
        "weight_decay": [0.1 if len(s) > 1 else 0.0 for s in shapes],
        **({"masters": masters} if mixed else {}),
    }
    calls = captured_calls(lambda: adamw(step, *lists, **options), peer.step)
    yield Work(f"kernel.adamw.{dtype}.fwd", numel * (30 if mixed else 28), *calls, captured=True)
    norm = private("grad_norm")
    calls = captured_calls(lambda: norm(grads), lambda: torch.nn.utils.get_total_norm([p.grad for p in params]))
    yield Work(f"kernel.grad_norm.{dtype}.fwd", 4 * numel, *calls, captured=True)


def head(dtype: str) -> Iterator[Work]:
    """Loss and gradients of the output projection, in GB/s of the logits of all tokens, read and written once."""
    rows = 16384
    (x, w), (our_x, our_w) = zip(
        *[[next(t) for t in operands(dtype, n, CHANNELS, sets=1)] for n in (rows, VOCABULARY)], strict=True
    )
    targets = torch.randint(0, VOCABULARY, (rows,), device="cuda")
    our_targets = bt.from_dlpack(targets)
    leaves = [t.detach().requires_grad_() for t in (x, w)]

    def peer() -> object:
        return torch.autograd.grad(f.cross_entropy(f.linear(*leaves).float(), targets), leaves)

    call: Call = lambda: ops.linear_cross_entropy(our_x, our_w, our_targets, -100, "mean", True, True)  # noqa: E731
    yield Work(f"kernel.linear_cross_entropy.{dtype}.fwd", 2 * rows * VOCABULARY * DTYPES[dtype].itemsize, call, peer)


GROUPS = {function.__name__: function for function in (layer_norm, embedding, losses, optimizers, head)}

if __name__ == "__main__":
    sys.exit(main(GROUPS, Path(__file__).name, __doc__))
