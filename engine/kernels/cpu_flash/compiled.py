"""The compiled heart of cpu-flash-jit: a block of query rows, tile after tile of keys, without a word of Python.

Matrix products go to BLAS by ``np.dot``. What is between them is loops over the scores of a row that LLVM makes vector
instructions of:

- The maximum is taken of whole numbers that sort as the floats do: of floats, LLVM would need leave to forget NaN.
- ``_exp2`` is a polynomial, right to about one unit in the last place. Its rounding trick does not bear reordering, so
  that only multiply-adds may be fused; the sum of a row may be taken in any order.
- Keys that a row does not see are left out by the bounds of the loops. No value stands for "hidden", and NaN and
  infinity keep their meaning everywhere.

Numba keeps what it has compiled on disk and looks at the time of this file alone, so all that is compiled is in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from engine.kernels.base import Array

_f32, _i32 = np.float32, np.int32
_ROUND = _f32(1.5 * 2**23 + 127)  # added to a number, leaves it rounded, with an exponent's bias, in the lowest bits
_LEAST, _MOST = _f32(-127), _f32(128)  # exponents that give 0, and no finite number
_FAR = _f32(2**14)  # sum of a row's weights in a tile above which its maximum has to move
# (2^r - 1) / r for |r| <= 1/2, highest power first: minimax in the relative error of 2^r, which stays below 2e-9
_EXP2 = tuple(_f32(c) for c in (1.5353362e-4, 1.3398874e-3, 9.618437e-3, 5.5503324e-2, 0.24022648, 0.6931472))
# (tanh(x) - x) / x³ in x² for |x| < 5/8, highest power first: from tanhf of the Cephes library (Moshier)
_TANH = tuple(_f32(c) for c in (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 0.133314422036, -0.33333281942))
_TANH_NEAR = _f32(0.625)
_TANH_EXPONENT = _f32(-2 / math.log(2))
_LN_2 = _f32(math.log(2))
# Places in ``Work.at``: the block under way; its next key, -1 before it has begun; whether its values so far are all
# finite; the end of the keys that any of its rows sees; the first and the end of those that every row sees
_BLOCK, _KEY, _FINITE, _END, _ALL_FROM, _ALL_TO = range(6)
_INF, _NAN, _ZERO, _ONE = _f32(np.inf), _f32(np.nan), _f32(0), _f32(1)


class Blas(NamedTuple):
    """Where BLAS's ``cblas_sgemm`` is, and whether the sizes it takes are of 64 bits."""

    address: np.uintp
    wide: bool


class Rule(NamedTuple):
    """How a product of query and key becomes an exponent of 2, and which keys a row sees.

    With a soft cap, ``cap`` above 0, the product p first becomes ``cap · tanh(before · p)``; ``factor`` then makes an
    exponent of it. ``flip`` is -1 where ``factor`` is negative, so that the least score weighs most, else 0. Row i sees
    the keys before ``i + offset + 1`` where ``causal``, and of these the last ``window``.
    """

    before: np.float32
    cap: np.float32
    factor: np.float32
    flip: np.int32
    causal: bool
    offset: int
    window: int


class Cut(NamedTuple):
    """How the problem is cut: a block is ``rows`` query rows of each of ``heads`` heads that share keys and values.

    Blocks are numbered as ``Blocks.block`` has it, and several heads share a block only with all of their rows.
    """

    rows: int
    heads: int
    row_blocks: int
    head_blocks: int
    keys: int  # of a tile
    edge_keys: int  # of a tile where not every row sees all
    few_rows: int  # of a product small enough for BLAS to take its operands as they lie; 0 where there is none
    heads_of_batch: int  # of a batch entry
    group: int  # heads that share keys and values
    seq_q: int
    seq_k: int


class Tensors(NamedTuple):
    """What is read and written, the first axes of a tensor as one."""

    q: Array  # [batch · heads · seq_q, head_dim]
    k: Array  # [batch · kv_heads · seq_k, head_dim]
    v: Array  # [batch · kv_heads · seq_k, head_dim_v]
    output: Array  # [batch · heads · seq_q, head_dim_v]
    lse: Array  # [batch · heads · seq_q], or empty where nobody asks
    shown: NDArray[np.int64]  # the keys that a key_mask leaves, in order, one batch entry after another
    shown_from: NDArray[np.int64]  # [batch + 1]: where each begins in ``shown``; empty without a key_mask


class Block(NamedTuple):
    """A block of query rows, and the keys and values of its head."""

    q: Array  # [rows of all its heads, head_dim]
    k: Array  # [seq_k, head_dim]
    v: Array  # [seq_k, head_dim_v]
    output: Array  # [rows of all its heads, head_dim_v]
    row: int  # where in the sequence the rows of each head begin
    rows: int  # of one head
    shown: NDArray[np.int64]  # the keys that a key_mask leaves, where ``masked``
    masked: bool


class Work(NamedTuple):
    """The buffers of one thread, for R rows and tiles of T keys."""

    scores: Array  # [R · T], or as many rows as a product has
    keys: Array  # [T · head_dim], for keys that are not side by side, or turned; empty where they are used as they lie
    values: Array  # [T, head_dim_v], for values that are not side by side, or not finite, or off cache lines
    bounds: Array  # [2, head_dim_v]: the least and the greatest of the values so far
    first: NDArray[np.int64]  # [R]: a row sees the keys from first to before end, counting those shown alone
    end: NDArray[np.int64]  # [R]
    maximum: Array  # [R]
    sums: Array  # [R]: of weights relative to the maximum
    tile_sums: Array  # [R]: of the weights of one tile
    at: NDArray[np.int64]  # [6]: the block under way, and how far it has come


def _compiled(*fastmath: str) -> Callable[[Any], Any]:
    """Return Numba's decorator, which keeps its work on disk where there is a folder for it."""

    def decorate(function: Any) -> Any:
        options = {"nogil": True, "fastmath": set(fastmath) or False, "error_model": "numpy"}
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # neither beside this file nor in the user's cache
            return numba.njit(**options)(function)

    return decorate


def _same_bits(result: Any, argument: Any, kind: Any) -> Any:
    """Return what an intrinsic has to: its type, and how to take a number's bits for one of another type."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], kind)

    return result(argument), generate


@intrinsic
def _bits(_typing: Any, _number: Any) -> Any:
    """Return the bits of a float32 as an int32."""
    return _same_bits(types.int32, types.float32, ir.IntType(32))


@intrinsic
def _float(_typing: Any, _number: Any) -> Any:
    """Return the float32 that has an int32's bits."""
    return _same_bits(types.float32, types.int32, ir.FloatType())


@intrinsic
def _long_vectors(_typing: Any) -> Any:
    """Have the function that calls this compiled to vectors of 512 bits, where LLVM by itself stays with 256.

    That is its choice for most processors with AVX-512, whose clock might drop; beside BLAS it has dropped already.
    """

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        attributes = builder.function.attributes
        set.add(attributes, '"prefer-vector-width"="512"')  # the class's own ``add`` knows single words only
        attributes.add("noinline")  # the attribute is of a function, and lost in another
        return context.get_dummy_value()

    return types.void(), generate


def _sgemm(index: Any) -> Any:
    """Return an intrinsic that calls BLAS where sizes are whole numbers of type ``index``."""

    @intrinsic
    def sgemm(
        _typing: Any, _address: Any, _turned: Any, _m: Any, _n: Any, _k: Any, _a: Any, _b: Any, _beta: Any, _c: Any
    ) -> Any:
        size, place, real, flag = types.int64, types.uintp, types.float32, ir.IntType(32)
        signature = types.void(place, types.boolean, size, size, size, place, place, real, place)

        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            number, pointer, single = (context.get_value_type(kind) for kind in (index, place, real))
            address, turned, m, n, k, a, b, beta, c = arguments
            m, n, k = (builder.trunc(x, number) if index is types.int32 else x for x in (m, n, k))
            row_major, plain, transposed = (flag(value) for value in (101, 111, 112))  # as cblas.h numbers them
            how_b, width_b = builder.select(turned, transposed, plain), builder.select(turned, k, n)
            kinds = [flag] * 3 + [number] * 3 + [single, pointer, number, pointer, number, single, pointer, number]
            function = builder.inttoptr(address, ir.FunctionType(ir.VoidType(), kinds).as_pointer())
            builder.call(function, [row_major, plain, how_b, m, n, k, single(1.0), a, k, b, width_b, beta, c, n])
            return context.get_dummy_value()

        return signature, generate

    return sgemm


_sgemm32, _sgemm64 = _sgemm(types.int32), _sgemm(types.int64)


@_compiled()
def _multiply(blas: Any, a: Any, b: Any, turned: Any, beta: Any, c: Any) -> None:
    """Write ``a @ b + beta · c`` to ``c``, or ``a @ b.T + beta · c`` where ``turned``; all are rows side by side."""
    m, n, k = c.shape[0], c.shape[1], a.shape[1]
    if blas.wide:
        _sgemm64(blas.address, turned, m, n, k, a.ctypes.data, b.ctypes.data, beta, c.ctypes.data)
    else:
        _sgemm32(blas.address, turned, m, n, k, a.ctypes.data, b.ctypes.data, beta, c.ctypes.data)


@_compiled("contract")
def _exp2(x: Any) -> Any:
    """Return 2^x: 0 from -126.5 downwards, infinity or NaN from 127.5 upwards."""
    x = _LEAST if x < _LEAST else x  # NaN stays
    x = _MOST if x > _MOST else x
    rounded = x + _ROUND
    r = x - (rounded - _ROUND)
    p = _EXP2[0] * r + _EXP2[1]
    p = p * r + _EXP2[2]
    p = p * r + _EXP2[3]
    p = p * r + _EXP2[4]
    p = p * r + _EXP2[5]
    whole = _float(_i32(_bits(rounded) << _i32(23)))  # 2 to the power of the rounded x
    return p * r * whole + whole


@_compiled("contract")
def _tanh(x: Any) -> Any:
    size = abs(x)
    t = _exp2(_TANH_EXPONENT * size)
    z = x * x
    p = _TANH[0] * z + _TANH[1]
    p = p * z + _TANH[2]
    p = p * z + _TANH[3]
    p = p * z + _TANH[4]
    near = p * z * x + x
    far = math.copysign((_ONE - t) / (_ONE + t), x)
    return near if size < _TANH_NEAR else far


@_compiled()
def _sorting(bits: Any) -> Any:
    """Return a whole number that sorts among its like as the float with those bits; and back."""
    return _i32(bits ^ _i32(_i32(bits >> _i32(31)) & _i32(0x7FFFFFFF)))


@_compiled()
def _top(scores: Any, flip: Any) -> Any:
    """Return the greatest score, the least where ``flip`` is -1."""
    most = _i32(-0x80000000)
    for i in range(scores.size):
        number = _i32(_sorting(_bits(scores[i])) ^ flip)
        most = number if number > most else most
    return _float(_sorting(_i32(most ^ flip)))


@_compiled("contract", "reassoc")
def _weigh(scores: Any, top: Any, factor: Any) -> Any:
    """Make weights of the scores, in place, and return their sum."""
    _long_vectors()
    total = _ZERO
    for i in range(scores.size):
        weight = _exp2((scores[i] - top) * factor)
        scores[i] = weight
        total += weight
    return total


@_compiled("contract")
def _soften(scores: Any, block: Any, rule: Any, work: Any, start: Any, above: Any, careful: Any) -> Any:
    """Make weights of a tile's scores [rows, keys] in place, 0 for keys that a row does not see; add to the row's sum.

    The tile begins at key ``start``, its rows ``above`` rows down the block. Weights are relative to a row's maximum so
    far, as the exact one costs another pass. Where one is far from it, the answer is False and no sum has changed;
    ``careful`` then moves the maximum, and shrinks the sum and what there is of the output.
    """
    keys, lowest, rows = scores.shape[1], _INF if rule.flip else -_INF, slice(above, above + scores.shape[0])
    first, end, maximum, sums = work.first[rows], work.end[rows], work.maximum[rows], work.sums[rows]
    for row in range(scores.shape[0]):
        low = min(max(first[row] - start, 0), keys)
        high = min(max(end[row] - start, low), keys)
        _fill(scores[row, :low], _ZERO)
        _fill(scores[row, high:], _ZERO)
        work.tile_sums[row] = _ZERO
        if low == high:
            continue
        seen = scores[row, low:high]
        if rule.cap > 0:
            for i in range(seen.size):
                seen[i] = rule.cap * _tanh(seen[i] * rule.before)
        top = before = maximum[row]
        if careful or before == lowest:
            top = _top(seen, rule.flip)
            if before != lowest and (top <= before if rule.flip == 0 else top >= before):
                top = before
            if top == lowest:  # a weight relative to it says nothing: 0, unless the score is NaN
                for i in range(seen.size):
                    seen[i] = _ZERO if seen[i] == lowest else _NAN
                    work.tile_sums[row] += seen[i]
                continue
            if top != before and before != lowest:
                shrink = _exp2((before - top) * rule.factor)
                sums[row] *= shrink
                output = block.output[above + row]
                for i in range(output.size):
                    output[i] *= shrink
            maximum[row] = top
        work.tile_sums[row] = _weigh(seen, top, rule.factor)
        if not careful and not work.tile_sums[row] <= _FAR:
            return False
    for row in range(scores.shape[0]):
        sums[row] += work.tile_sums[row]
    return True


@_compiled("contract", "reassoc")
def _widen(bounds: Any, values: Any) -> Any:
    """Widen the bounds [2, columns] to those of values [keys, columns]; tell whether all values are finite."""
    _long_vectors()
    low, high = bounds[0], bounds[1]
    odd = _ZERO  # becomes NaN by the first value that is not finite
    whole = values.shape[0] // 4 * 4
    for i in range(0, whole, 4):  # four keys at a time: fewer loads and stores of the bounds
        a, b, c, d = values[i], values[i + 1], values[i + 2], values[i + 3]
        for j in range(low.size):
            low[j] = min(min(low[j], a[j]), min(b[j], min(c[j], d[j])))
            high[j] = max(max(high[j], a[j]), max(b[j], max(c[j], d[j])))
            odd += a[j] * _ZERO + b[j] * _ZERO + c[j] * _ZERO + d[j] * _ZERO
    for i in range(whole, values.shape[0]):
        a = values[i]
        for j in range(low.size):
            low[j] = min(low[j], a[j])
            high[j] = max(high[j], a[j])
            odd += a[j] * _ZERO
    return odd == _ZERO


@_compiled()
def _fill(array: Any, value: Any) -> None:
    for i in range(array.size):
        array[i] = value


@_compiled()
def _row(source: Any, numbers: Any, number: Any) -> Any:
    """Return the row of that number in ``numbers``, or where there are none in ``source``."""
    return source[numbers[number] if numbers.size else number]


@_compiled()
def _copy_rows(source: Any, numbers: Any, start: Any, target: Any) -> None:
    """Copy the rows with those numbers, or where there are none those from ``start`` on, to ``target``."""
    for i in range(target.shape[0]):
        row = _row(source, numbers, start + i)
        for j in range(target.shape[1]):
            target[i, j] = row[j]


@_compiled()
def _turn_rows(source: Any, numbers: Any, start: Any, target: Any) -> None:
    """Copy such rows to the columns of ``target``."""
    whole = target.shape[1] // 4 * 4
    for i in range(0, whole, 4):  # four rows at a time: fewer stores, and of those a processor does one at a time
        a, b = _row(source, numbers, start + i), _row(source, numbers, start + i + 1)
        c, d = _row(source, numbers, start + i + 2), _row(source, numbers, start + i + 3)
        for j in range(target.shape[0]):
            column = target[j]
            column[i], column[i + 1], column[i + 2], column[i + 3] = a[j], b[j], c[j], d[j]
    for i in range(whole, target.shape[1]):
        a = _row(source, numbers, start + i)
        for j in range(target.shape[0]):
            target[j, i] = a[j]


@_compiled()
def _begin(block: Any, rule: Any, work: Any) -> None:
    """Find out which keys the rows of a block see, and forget the block before."""
    seq_k, count = block.k.shape[0], block.q.shape[0]
    begin, end, all_from, all_to = seq_k, 0, 0, seq_k
    for i in range(count):
        after = block.row + i % block.rows + rule.offset + 1
        stop = min(max(after, 0), seq_k) if rule.causal else seq_k
        start = min(max(after - rule.window, 0), stop) if rule.causal else 0
        if block.masked:
            start, stop = np.searchsorted(block.shown, start), np.searchsorted(block.shown, stop)
        work.first[i], work.end[i] = start, stop
        begin, end = min(begin, start), max(end, stop)
        all_from, all_to = max(all_from, start), min(all_to, stop)
        work.maximum[i] = _INF if rule.flip else -_INF
        work.sums[i] = _ZERO
        _fill(block.output[i], _ZERO)
    at = work.at
    at[_KEY], at[_FINITE], at[_END], at[_ALL_FROM], at[_ALL_TO] = begin, 1, end, all_from, all_to
    _fill(work.bounds[0], _INF)
    _fill(work.bounds[1], -_INF)


@_compiled()
def _zero_nonfinite(values: Any) -> None:
    """Set to 0 each row of ``values`` that has a number that is not finite."""
    for key in range(values.shape[0]):
        odd = _ZERO
        for i in range(values.shape[1]):
            odd += values[key, i] * _ZERO
        if odd != _ZERO:
            _fill(values[key], _ZERO)


@_compiled()
def _add_nonfinite(block: Any, work: Any, weights: Any, start: Any, above: Any) -> None:
    """Add what ``_zero_nonfinite`` took from a tile's values, weighted, to the output of the rows that see it."""
    for key in range(weights.shape[1]):
        value = block.v[block.shown[start + key] if block.masked else start + key]
        odd = _ZERO
        for i in range(value.size):
            odd += value[i] * _ZERO
        if odd == _ZERO:
            continue
        for row in range(weights.shape[0]):
            if work.first[above + row] <= start + key < work.end[above + row]:
                output = block.output[above + row]
                for i in range(value.size):
                    output[i] += weights[row, key] * value[i]


@_compiled()
def _tile(blas: Any, block: Any, few_rows: Any, rule: Any, work: Any, start: Any, stop: Any) -> Any:
    """Go through a tile of keys with the rows that see any of it; return how many scores that took."""
    low, high = block.q.shape[0], 0
    for row in range(block.q.shape[0]):
        if work.first[row] < stop and work.end[row] > start:
            low, high = min(low, row), row + 1
    if low >= high:
        return 0
    count, turned, size = stop - start, few_rows == 0, block.k.shape[1]
    keys, values = block.k[start:stop], block.v[start:stop]
    if few_rows:
        keys = work.keys[: count * size].reshape(size, count)
        _turn_rows(block.k, block.shown, start, keys)
    elif block.masked:
        keys = work.keys[: count * size].reshape(count, size)
        _copy_rows(block.k, block.shown, start, keys)
    if few_rows or block.masked:
        values = work.values[:count]
        _copy_rows(block.v, block.shown, start, values)
    finite = _widen(work.bounds, values)
    if not finite:  # a weight of 0 times NaN is NaN, so such a value must not meet rows that do not see it
        work.at[_FINITE] = 0
        values = work.values[:count]
        _copy_rows(block.v, block.shown, start, values)
        _zero_nonfinite(values)
    step = few_rows if few_rows else high - low
    for above in range(low, high, step):
        below = min(above + step, high)
        queries, output = block.q[above:below], block.output[above:below]
        weights = work.scores[: (below - above) * count].reshape(below - above, count)
        _multiply(blas, queries, keys, turned, _ZERO, weights)
        if not _soften(weights, block, rule, work, start, above, False):
            _multiply(blas, queries, keys, turned, _ZERO, weights)
            _soften(weights, block, rule, work, start, above, True)
        if not finite:
            _add_nonfinite(block, work, weights, start, above)
        _multiply(blas, weights, values, False, _ONE, output)
    return (high - low) * count


@_compiled("contract")
def _finish(block: Any, lse: Any, rule: Any, work: Any) -> None:
    """Divide the output of a block by the sums of weights, hold it within the bounds, and write the log-sum-exp."""
    low, high = work.bounds[0], work.bounds[1]
    for row in range(block.output.shape[0]):
        out, total = block.output[row], work.sums[row]
        blind = work.first[row] >= work.end[row]
        if blind:
            _fill(out, _ZERO)
        elif work.at[_FINITE]:
            for i in range(out.size):
                mean = out[i] / total
                mean = low[i] if mean < low[i] else mean  # NaN stays
                out[i] = high[i] if mean > high[i] else mean
        else:
            for i in range(out.size):
                out[i] = out[i] / total
        if lse.size:
            lse[row] = -_INF if blind else work.maximum[row] * rule.factor * _LN_2 + math.log(total)


@_compiled()
def attend(blas: Any, tensors: Any, cut: Any, rule: Any, work: Any, stop: Any, scores: Any) -> None:
    """Go on with the block under way and those after it, to before block ``stop`` or until so many scores are done."""
    at, masked, shown = work.at, tensors.shown_from.size > 0, tensors.shown
    while at[_BLOCK] < stop and scores > 0:
        row_block = at[_BLOCK] // cut.head_blocks
        pair = (at[_BLOCK] - row_block * cut.head_blocks) * cut.heads
        row = (cut.row_blocks - 1 - row_block) * cut.rows  # the last ones first: if causal, they take longest
        rows = min(cut.rows, cut.seq_q - row)
        begin, end = pair * cut.seq_q + row, pair * cut.seq_q + row + rows * cut.heads
        keys_begin, keys_end = pair // cut.group * cut.seq_k, (pair // cut.group + 1) * cut.seq_k
        if masked:
            batch = pair // cut.heads_of_batch
            shown = tensors.shown[tensors.shown_from[batch] : tensors.shown_from[batch + 1]]
        q, k, v = tensors.q[begin:end], tensors.k[keys_begin:keys_end], tensors.v[keys_begin:keys_end]
        block = Block(q, k, v, tensors.output[begin:end], row, rows, shown, masked)
        if at[_KEY] < 0:
            _begin(block, rule, work)
        while at[_KEY] < at[_END] and scores > 0:
            start = at[_KEY]
            edge = start if start < at[_ALL_FROM] else max(start, at[_ALL_TO] - 1)
            at[_KEY] = min(start + cut.keys, edge + cut.edge_keys, at[_END])
            scores -= _tile(blas, block, cut.few_rows, rule, work, start, at[_KEY])
        if at[_KEY] >= at[_END]:
            _finish(block, tensors.lse[begin:end], rule, work)
            at[_BLOCK], at[_KEY] = at[_BLOCK] + 1, -1
