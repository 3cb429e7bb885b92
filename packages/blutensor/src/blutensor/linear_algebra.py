"""Products of tensors over chosen axes. Names and arguments follow the Python array API standard, and NumPy for einsum.

All of them are matrix products: axes are put in order, runs of them become one, and `matmul` does the work. Operands of
different dtypes are converted to the one in which they meet, as by the elementwise operators; gradients come back in
each operand's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from . import _operators as ops
from ._arguments import integer
from ._calls import need_tensor
from ._naming import named
from .data_types import result_type
from .errors import ShapeError
from .manipulation import broadcast_shapes, diagonal, moveaxis, normalized_axes, normalized_axis
from .tensor import Tensor

__all__ = ["einsum", "matmul", "matrix_transpose", "outer", "tensordot", "vecdot"]


@named("matmul")
def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Matrix products.

    Args:
        x1: Numbers [..., M, K], or a vector [K].
        x2: Numbers [..., K, N], or a vector [K]; the axes in front broadcast.

    Returns:
        [..., M, N], without the axes that vectors lack, of the dtype in which those of x1 and x2 meet.

    Raises:
        DTypeError: No tensors, bools, or dtypes that do not meet (uint64 with a signed integer).
        ShapeError: Shapes that do not fit.
    """
    return ops.matmul(*_of_one_dtype("matmul", x1, x2))


def _of_one_dtype(op: str, *operands: Tensor) -> tuple[Tensor, ...]:
    """The operands in the dtype in which theirs meet."""
    for i, x in enumerate(operands):
        need_tensor(op, f"x{i + 1}", x)
    if all(x.dtype is operands[0].dtype for x in operands):
        return operands
    dtype = result_type(*operands)
    return tuple(x.astype(dtype) for x in operands)


@named("matrix_transpose")
def matrix_transpose(x: Tensor, /) -> Tensor:
    """Matrices [..., M, N] as [..., N, M]: a view.

    Raises:
        ShapeError: Fewer than 2 axes.
    """
    if need_tensor("matrix_transpose", "x", x).ndim < 2:
        raise ShapeError(f"[matrix_transpose] expected at least 2 axes, got shape {x.shape}")
    return x.transpose(-1, -2)


@named("outer")
def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Products of all elements of x1 [M] with all of x2 [N]: [M, N].

    Raises:
        ShapeError: Not 1-d.
    """
    for x in (x1, x2):
        if x.ndim != 1:
            raise ShapeError(f"[outer] expected 1-d tensors, got shapes {x1.shape} and {x2.shape}")
    return ops.multiply(ops.expand_dims(x1, 1), x2)


@named("vecdot")
def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Sums of products along an axis of two tensors that broadcast.

    Args:
        x1: Numbers, N along the axis.
        x2: The same.
        axis: From -min(rank) to -1.

    Raises:
        ShapeError: Different sizes along the axis, or shapes that do not broadcast.
        IndexOutOfRangeError: No such axis.
    """
    rank = min(x1.ndim, x2.ndim)
    axis = normalized_axis("vecdot", axis, rank) - rank if axis < 0 or x1.ndim == x2.ndim else axis
    if axis >= 0:
        raise ShapeError(f"[vecdot] expected a negative axis for shapes {x1.shape} and {x2.shape}, got {axis}")
    if x1.shape[axis] != x2.shape[axis]:
        raise ShapeError(f"[vecdot] expected one size along axis {axis}, got shapes {x1.shape} and {x2.shape}")
    left, right = moveaxis(x1, axis, -1), moveaxis(x2, axis, -1)
    return matmul(ops.expand_dims(left, -2), ops.expand_dims(right, -1)).reshape(
        broadcast_shapes(left.shape[:-1], right.shape[:-1])
    )


@named("tensordot")
def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """Sums of products over pairs of axes.

    Args:
        x1: Numbers.
        x2: Numbers.
        axes: The axes of x1 and those of x2 that belong together; a number n: the last n of x1 and the first n of x2.

    Returns:
        The other axes of x1, then those of x2.

    Raises:
        ShapeError: Not as many axes of both, or of different sizes.
        IndexOutOfRangeError: No such axis.
    """
    if isinstance(axes, int) or hasattr(axes, "__index__"):
        count = integer("tensordot", "axes", axes, least=0)
        if count > min(x1.ndim, x2.ndim):
            raise ShapeError(f"[tensordot] expected at most {min(x1.ndim, x2.ndim)} axes, got {count}")
        left, right = tuple(range(x1.ndim - count, x1.ndim)), tuple(range(count))
    else:
        left, right = (normalized_axes("tensordot", a, x.ndim) for a, x in zip(axes, (x1, x2), strict=True))
    if [x1.shape[a] for a in left] != [x2.shape[a] for a in right]:
        raise ShapeError(f"[tensordot] expected axes {axes} of equal sizes, got shapes {x1.shape} and {x2.shape}")
    kept1, kept2 = [a for a in range(x1.ndim) if a not in left], [a for a in range(x2.ndim) if a not in right]
    size = math.prod(x1.shape[a] for a in left)
    rows, columns = [x1.shape[a] for a in kept1], [x2.shape[a] for a in kept2]
    a = ops.permute_dims(x1, [*kept1, *left]).reshape(math.prod(rows), size)
    b = ops.permute_dims(x2, [*right, *kept2]).reshape(size, math.prod(columns))
    return matmul(a, b).reshape(*rows, *columns)


# ---------------------------------------------------------------- einsum


@named("einsum")
def einsum(subscripts: str, *operands: Tensor) -> Tensor:
    """Sums of products over named axes: "ij,jk->ik" is a matrix product.

    Args:
        subscripts: A letter for each axis of each operand. "..." stands for any leading or inner axes, which broadcast.
            Letters of the result follow "->"; without it they are those that occur once, in the order of the alphabet.
            A letter that occurs twice in an operand takes its diagonal.
        operands: Numbers.

    Returns:
        The axes that the result names.

    Raises:
        ShapeError: Subscripts that cannot be read or do not fit the operands.
        DTypeError: An operand that is no tensor, or dtypes that do not meet.

    Operands are multiplied pair by pair, in the order that NumPy's greedy `einsum_path` finds cheapest.
    """
    operands = _of_one_dtype("einsum", *operands)
    names, result = _parsed(subscripts, [x.ndim for x in operands])
    terms = [_without_repeats(n, x) for n, x in zip(names, operands, strict=True)]
    sizes = _sizes(subscripts, terms)
    terms = [_without_ones(n, x, sizes) for n, x in terms]
    for picked in _path([n for n, _ in terms], result, sizes):
        group = [terms.pop(i) for i in sorted(picked, reverse=True)]
        left = group.pop()
        while group:  # in the order in which they were given
            right = group.pop()
            kept = set(result).union(*(n for n, _ in terms), *(n for n, _ in group))
            left = _product(left, right, kept)
        terms.append(left)
    name, x = _summed(*terms[0], set(result))
    return ops.permute_dims(x, [name.index(c) for c in result])


def _parsed(subscripts: str, ranks: list[int]) -> tuple[list[str], str]:
    """Letters of every operand and of the result, with letters of their own for what an ellipsis stands for."""

    def wrong(why: str) -> ShapeError:
        return ShapeError(f"[einsum] expected {why}, got {subscripts!r} for operands of {ranks} axes")

    text = subscripts.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    names = inputs.split(",")
    if len(names) != len(ranks):
        raise wrong(f"subscripts of {len(ranks)} operands")
    letters = set(text.replace("...", "").replace("->", "").replace(",", ""))
    if not all(c.isalpha() for c in letters):
        raise wrong("letters, '...', ',' and '->'")
    spare = [c for c in map(chr, range(0x3B1, 0x3B1 + 64)) if c not in letters]
    inner = 0
    for k, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        hidden = rank - len(name.replace("...", ""))
        if hidden < 0 or name.count("...") > 1 or (hidden > 0 and "..." not in name):
            raise wrong(f"{rank} letters, or an ellipsis, for operand {k}")
        if "..." in name:
            inner = max(inner, hidden)
            names[k] = name.replace("...", "".join(spare[:hidden][::-1]))  # aligned from the last axis
    if not arrow:
        joined = "".join(names)
        once = sorted(c for c in letters if joined.count(c) == 1)
        return names, "".join(spare[:inner][::-1]) + "".join(once)
    if inner and "..." not in output:
        raise wrong("an ellipsis in the result where operands have one")
    output = output.replace("...", "".join(spare[:inner][::-1]))
    if len(set(output)) != len(output) or not set(output) <= set("".join(names)):
        raise wrong("a result whose letters are operands' and occur once")
    return names, output


def _without_repeats(name: str, x: Tensor) -> tuple[str, Tensor]:
    """Diagonals in place of letters that occur twice."""
    for letter in dict.fromkeys(name):
        while name.count(letter) > 1:
            first = name.index(letter)
            second = name.index(letter, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError(f"[einsum] expected equal sizes for '{letter}', got shape {x.shape}")
            rest = [a for a in range(x.ndim) if a not in (first, second)]
            x = diagonal(ops.permute_dims(x, [*rest, first, second]))
            name = "".join(name[a] for a in rest) + letter
    return name, x


def _sizes(subscripts: str, terms: list[tuple[str, Tensor]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, x in terms:
        for letter, size in zip(name, x.shape, strict=True):
            known = sizes.get(letter, 1)
            if 1 not in (known, size) and known != size:
                raise ShapeError(
                    f"[einsum] expected equal sizes for '{letter}' in {subscripts!r}, got {known} and {size}"
                )
            sizes[letter] = size if known == 1 else known
    return sizes


def _without_ones(name: str, x: Tensor, sizes: dict[str, int]) -> tuple[str, Tensor]:
    """Without the axes of size 1 that broadcast to another size."""
    drop = [a for a, letter in enumerate(name) if x.shape[a] == 1 and sizes[letter] != 1]
    return ("".join(c for a, c in enumerate(name) if a not in drop), ops.squeeze(x, drop)) if drop else (name, x)


def _path(names: list[str], result: str, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Which operands to multiply next, as positions in a list to whose end each product goes."""
    if len(names) < 3:
        return [tuple(range(len(names)))]
    # einsum_path takes Latin letters only.
    plain = {c: chr(ord("A") + i) if i < 26 else chr(ord("a") + i - 26) for i, c in enumerate(sizes)}
    shapes = [np.broadcast_to(np.float32(0), [max(sizes[c], 1) for c in name]) for name in names]
    text = ",".join("".join(plain[c] for c in name) for name in names) + "->" + "".join(plain[c] for c in result)
    return [tuple(step) for step in np.einsum_path(text, *shapes, optimize="greedy")[0][1:]]


def _summed(name: str, x: Tensor, kept: set[str]) -> tuple[str, Tensor]:
    """Summed over the letters that nothing else needs."""
    drop = [a for a, letter in enumerate(name) if letter not in kept]
    if not drop:
        return name, x
    total = ops.sum(x, drop)
    return "".join(c for c in name if c in kept), total if total.dtype is x.dtype else total.astype(x.dtype)


def _product(left: tuple[str, Tensor], right: tuple[str, Tensor], kept: set[str]) -> tuple[str, Tensor]:
    """The product of two operands, summed over the letters that only they have."""
    a, x = _summed(*left, kept | set(right[0]))
    b, y = _summed(*right, kept | set(a))
    batch = [c for c in a if c in b and c in kept]
    inner = [c for c in a if c in b and c not in kept]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]

    def arranged(name: str, t: Tensor, *groups: list[str]) -> Tensor:
        size = dict(zip(name, t.shape, strict=True))
        ordered = ops.permute_dims(t, [name.index(c) for group in groups for c in group])
        return ordered.reshape(*(size[c] for c in groups[0]), *(math.prod(size[c] for c in g) for g in groups[1:]))

    size = dict(zip(a + b, x.shape + y.shape, strict=True))
    product = ops.matmul(arranged(a, x, batch, rows, inner), arranged(b, y, batch, inner, columns))
    name = [*batch, *rows, *columns]
    return "".join(name), product.reshape(*(size[c] for c in name))
