"""What the compiled steps of prefill compute, written for vectors (``machine_code``).

Theory of operation. Activations lie in groups of as many tokens as a vector has lanes,
``(groups, features, lanes)``: every step is the same for all lanes, and nothing is rearranged between steps.

A product reads the weights where they lie, one float at a time in all lanes: a tile of rows times three
groups stays in registers while the sum runs over the features. A BLAS rearranges both factors first, which
for a few dozen tokens costs as much as the multiplication, and cannot be told that weights are the same every
time. The next tile's rows are fetched ahead.

A number is summed in the order of the features, or of the keys, by fused multiply-adds, whatever the tile,
the lanes and the groups beside it.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.embedded.machine_code import Module, Registers, Value, Writer

LINE_FLOATS = 16
"""Floats of a cache line."""

BLOCK_ROWS = 192
"""Rows of a matrix that are multiplied with all groups before the next ones are read: a part of the
second-level cache. A multiple of the rows of every tile."""

UNROLLED = 4
"""Features that a tile's loop takes at a time."""

OWN_SCRATCH = frozenset({"attend"})
"""Kernels whose first pointer is memory of the thread."""

BLOCK_KEYS = 96
"""Keys that are attended to at a time: their scores stay in the first-level cache. A multiple of the rows of
every tile."""


def write_kernels(module: Module, kind: Registers) -> list[Writer]:
    """Each is described where it is written."""
    product, product_of_columns = (
        _write_product(module, kind.rows, by_columns=by_columns) for by_columns in (False, True)
    )
    return [
        product,
        _write_normalize(module),
        _write_turn(module),
        _write_gate(module),
        _write_keep(module),
        _write_attend(module, product, product_of_columns, _write_collect(module)),
    ]


def _write_tile(module: Module, rows: int, groups: int, *, by_columns: bool) -> Writer:
    """``tile(matrix, x, out, tiles, features, stride, x_stride, out_stride, adds)``: ``rows`` rows of ``out``
    at a time, ``tiles`` times; see ``_write_product``. Unrolled: every sum has a name, so that it gets a
    register. Each instruction that is neither a multiplication nor a load competes with these for a place to
    run, so addresses differ by constants as far as possible."""
    w = module.function(f"tile_{rows}x{groups}{'_of_columns' if by_columns else ''}", 3, 6)
    matrix, x, out, tiles, features, stride, x_stride, out_stride, adds = w.arguments
    b = w.build
    adding = b.icmp_signed("!=", adds, w.number(0))
    sources = [w.at(x, w.times(x_stride, j)) for j in range(groups)]
    sums = [(i, j) for i in range(rows) for j in range(groups)]
    apart = [w.number(i) if by_columns else w.times(stride, i) for i in range(rows)]
    along = stride if by_columns else w.number(1)
    tile_floats = w.number(rows) if by_columns else w.times(stride, rows)

    def tile(number: Value, _: list[Value]) -> None:
        top = w.at(matrix, w.times(number, tile_floats))

        def feature(place: Value, columns: list[Value], offset: int, totals: list[Value]) -> list[Value]:
            """One feature: its weights at ``place``, its activations ``offset`` after ``columns``."""
            loaded = [w.load(w.at(column, w.number(offset * w.lanes))) for column in columns]
            weights = [w.load_one(w.at(place, distance)) for distance in apart]
            return [w.fused(weights[i], loaded[j], total) for (i, j), total in zip(sums, totals, strict=True)]

        def several(index: Value, totals: list[Value]) -> list[Value]:
            first = w.times(index, UNROLLED)
            columns = [w.at(source, w.times(first, w.lanes)) for source in sources]
            place = w.at(top, w.times(first, along))
            if not by_columns:
                # Of the next tile's rows a line each, by the time that this tile has gone through a line.
                lines = rows * UNROLLED // LINE_FLOATS
                row = w.times(b.and_(index, w.number(LINE_FLOATS // UNROLLED - 1)), lines)
                for number in range(lines):
                    ahead = b.add(row, w.number(rows + number))
                    w.prefetch(w.at(place, w.times(stride, ahead)))
            for offset in range(UNROLLED):
                there = w.at(place, w.times(along, offset))
                totals = feature(there, columns, offset, totals)
            return totals

        def single(index: Value, totals: list[Value]) -> list[Value]:
            columns = [w.at(source, w.times(index, w.lanes)) for source in sources]
            return feature(w.at(top, w.times(index, along)), columns, 0, totals)

        zeros = [w.all(0.0)] * len(sums)
        if rows == 1:
            totals = w.repeat(features, single, zeros)
        else:
            rounds = b.sdiv(features, w.number(UNROLLED))
            totals = w.repeat_from(w.number(0), rounds, several, zeros)
            totals = w.repeat_from(w.times(rounds, UNROLLED), features, single, totals)
        target = w.at(out, w.times(number, rows * w.lanes))
        for (i, j), total in zip(sums, totals, strict=True):
            to = w.at(target, w.times(out_stride, j), w.number(i * w.lanes))
            w.store(b.select(adding, b.fadd(w.load(to), total), total), to)

    w.repeat(tiles, tile)
    w.end()
    return w


Parts = tuple[tuple[int, Value, Value], ...]
"""Rows of a tile, how many tiles, the first row."""


def _write_product(module: Module, rows_of_three: int, *, by_columns: bool) -> Writer:
    """``product(matrix, x, out, rows, features, groups, stride, x_stride, out_stride, adds)``: ``out = matrix
    @ x``, or ``out += …`` unless ``adds`` is 0. ``stride`` is from row to row of the matrix, whose rows are
    contiguous, or from column to column if its columns are (``by_columns``); the strides of ``x`` and ``out``
    are from group to group. At least one of each."""
    # A tile of two groups has registers for more rows; those of attention are better divisible by fewer.
    heights = {3: rows_of_three, 2: rows_of_three if by_columns else rows_of_three * 3 // 2, 1: rows_of_three}
    tiles = {
        (rows, groups): _write_tile(module, rows, groups, by_columns=by_columns)
        for groups, most in heights.items()
        for rows in (most, 1)
    }
    w = module.function("product_of_columns" if by_columns else "product", 3, 7)
    matrix, x, out, rows, features, groups, *strides, adds = w.arguments
    stride, x_stride, out_stride = strides
    b = w.build
    # Threes, but rather two pairs than three and one.
    threes = b.sdiv(groups, w.number(3))
    one_left = b.icmp_signed("==", b.srem(groups, w.number(3)), w.number(1))
    several = b.icmp_signed(">", threes, w.number(0))
    threes = b.sub(threes, b.zext(b.and_(one_left, several), module.integer))
    rest = b.sub(groups, w.times(threes, 3))
    counts = {3: threes, 2: b.sdiv(rest, w.number(2)), 1: b.srem(rest, w.number(2))}
    firsts = {3: w.number(0), 2: w.times(threes, 3), 1: b.sub(groups, counts[1])}

    def block(number: Value, _: list[Value]) -> None:
        first_row = w.times(number, BLOCK_ROWS)
        height = w.least(w.number(BLOCK_ROWS), b.sub(rows, first_row))
        for wide, most in heights.items():
            whole, left = b.sdiv(height, w.number(most)), b.srem(height, w.number(most))
            parts = ((most, whole, first_row), (1, left, b.add(first_row, w.times(whole, most))))

            def columns(index: Value, _: list[Value], wide: int = wide, parts: Parts = parts) -> None:
                group = b.add(firsts[wide], w.times(index, wide))
                source = w.at(x, w.times(group, x_stride))
                target = w.at(out, w.times(group, out_stride))
                for tile_rows, count, row in parts:
                    with b.if_then(b.icmp_signed(">", count, w.number(0))):
                        w.call(
                            tiles[tile_rows, wide],
                            w.at(matrix, row if by_columns else w.times(row, stride)),
                            source,
                            w.at(target, w.times(row, w.lanes)),
                            *(count, features, *strides, adds),
                        )

            w.repeat(counts[wide], columns, maybe_none=True)

    w.repeat(b.sdiv(b.add(rows, w.number(BLOCK_ROWS - 1)), w.number(BLOCK_ROWS)), block)
    w.end()
    return w


def _write_normalize(module: Module) -> Writer:
    """``normalize(x, weight, out, groups, features, epsilon)``: RMSNorm."""
    w = module.function("normalize", 3, 2, 1)
    x, weight, out, groups, features, epsilon = w.arguments
    b = w.build
    count = b.sitofp(features, module.float)

    def group(number: Value, _: list[Value]) -> None:
        start = w.times(number, features, w.lanes)
        source, target = w.at(x, start), w.at(out, start)

        def square(k: Value, totals: list[Value]) -> list[Value]:
            value = w.load(w.at(source, w.times(k, w.lanes)))
            return [w.fused(value, value, totals[0])]

        total = w.repeat(features, square, [w.all(0.0)])[0]
        mean = b.fdiv(total, w.all(count))
        scale = b.fdiv(w.all(1.0), w.unary("sqrt", b.fadd(mean, w.all(epsilon))))

        def write(k: Value, _: list[Value]) -> None:
            at = w.times(k, w.lanes)
            w.store(
                b.fmul(b.fmul(w.load(w.at(source, at)), scale), w.load_one(w.at(weight, k))), w.at(target, at)
            )

        w.repeat(features, write)

    w.repeat(groups, group)
    w.end()
    return w


def _write_turn(module: Module) -> Writer:
    """``turn(x, cos, sin, groups, heads, half, scale)``: the rotary embedding of half-split pairs, in place,
    and all times ``scale``. ``x (groups, heads, 2 * half, lanes)``; ``cos`` and ``sin (groups, half,
    lanes)``."""
    w = module.function("turn", 3, 3, 1)
    x, cos, sin, groups, heads, half, scale = w.arguments
    b = w.build
    factor = w.all(scale)

    def group(number: Value, _: list[Value]) -> None:
        def head(index: Value, _: list[Value]) -> None:
            start = w.times(b.add(w.times(number, heads), index), half, 2 * w.lanes)

            def pair(k: Value, _: list[Value]) -> None:
                angle = w.times(b.add(w.times(number, half), k), w.lanes)
                c, s = w.load(w.at(cos, angle)), w.load(w.at(sin, angle))
                near = w.at(x, start, w.times(k, w.lanes))
                far = w.at(near, w.times(half, w.lanes))
                first, second = w.load(near), w.load(far)
                w.store(b.fmul(b.fsub(b.fmul(first, c), b.fmul(second, s)), factor), near)
                w.store(b.fmul(b.fadd(b.fmul(second, c), b.fmul(first, s)), factor), far)

            w.repeat(half, pair)

        w.repeat(heads, head)

    w.repeat(groups, group)
    w.end()
    return w


def _write_gate(module: Module) -> Writer:
    """``gate(gate, up, groups, rows, stride)``: ``silu(gate) * up`` in place of ``gate``, ``stride`` from
    group to group of both."""
    w = module.function("gate", 2, 3)
    gate, up, groups, rows, stride = w.arguments
    b = w.build

    def group(number: Value, _: list[Value]) -> None:
        start = w.times(number, stride)

        def row(k: Value, _: list[Value]) -> None:
            at = b.add(start, w.times(k, w.lanes))
            value = w.load(w.at(gate, at))
            divisor = b.fadd(_exponential(w, b.fneg(value)), w.all(1.0))
            w.store(b.fmul(b.fdiv(value, divisor), w.load(w.at(up, at))), w.at(gate, at))

        w.repeat(rows, row)

    w.repeat(groups, group)
    w.end()
    return w


def _write_keep(module: Module) -> Writer:
    """``keep(x, target, places, tokens, heads, dim, plane)``: ``x (groups, heads, dim, lanes)`` of so many
    tokens as rows, the first head's at offsets ``places``, the next one's ``plane`` further. There is an
    offset for every lane, those beyond the tokens meaning nothing."""
    w = module.function("keep", 3, 4)
    x, target, places, tokens, heads, dim, plane = w.arguments
    b = w.build

    def group(number: Value, _: list[Value]) -> None:
        before = w.times(number, w.lanes)
        own, offsets = b.sub(tokens, before), w.integers_at(places, before)

        def head(index: Value, _: list[Value]) -> None:
            source = w.at(x, w.times(b.add(w.times(number, heads), index), dim, w.lanes))
            rows = w.at(target, w.times(index, plane))

            def feature(k: Value, _: list[Value]) -> None:
                w.scatter(w.load(w.at(source, w.times(k, w.lanes))), w.at(rows, k), offsets, own)

            w.repeat(dim, feature)

        w.repeat(heads, head)

    w.repeat(b.sdiv(b.add(tokens, w.number(w.lanes - 1)), w.number(w.lanes)), group)
    w.end()
    return w


def _write_collect(module: Module) -> Writer:
    """``collect(source, out, places, rows, dim)``: rows at offsets ``places`` one after the other."""
    w = module.function("collect", 3, 2)
    source, out, places, rows, dim = w.arguments
    b = w.build

    def row(index: Value, _: list[Value]) -> None:
        near, target = w.at(source, w.integer_at(places, index)), w.at(out, w.times(index, dim))

        def feature(k: Value, _: list[Value]) -> None:
            number = b.load(w.at(near, k), align=4, typ=module.float)
            b.store(number, w.at(target, k), align=4)

        w.repeat(dim, feature)

    w.repeat(rows, row)
    w.end()
    return w


def _write_attend(module: Module, product: Writer, product_of_columns: Writer, collect: Writer) -> Writer:
    """``attend(scratch, queries, keys, values, mixed, places, scattered, first, end, start, tokens, heads,
    dim, stride)``: attention of groups ``first…end-1`` of a slice of ``tokens`` tokens, the first of which is
    at position ``start``. ``heads`` query heads share the keys and values, rows of ``dim`` numbers: one after
    the other from the first one's place on or, if ``scattered`` is not 0, each at its own of ``places``.
    ``queries`` and ``mixed (heads, dim, lanes)`` with ``stride`` from group to group. Lanes beyond the tokens
    become zero. ``scratch`` has room for ``attend_scratch`` floats."""
    w = module.function("attend", 6, 8)
    scratch, queries, keys, values, mixed, places = w.arguments[:6]
    scattered, first, end, start, tokens, heads, dim, stride = w.arguments[6:]
    b = w.build
    of_head = w.times(dim, w.lanes)
    most = b.add(start, w.least(tokens, w.times(end, w.lanes)))
    rows = w.times(most, dim)
    apart = b.icmp_signed("!=", scattered, w.number(0))
    with b.if_then(apart):
        w.call(collect, keys, scratch, places, most, dim)
        w.call(collect, values, w.at(scratch, rows), places, most, dim)
    origin = w.integer_at(places, 0)
    keys = b.select(apart, scratch, w.at(keys, origin))
    values = b.select(apart, w.at(scratch, rows), w.at(values, origin))
    largest = b.select(apart, w.at(scratch, w.times(rows, 2)), scratch)
    sums = w.at(largest, w.times(heads, w.lanes))
    scores = w.at(sums, w.times(heads, w.lanes))

    def group(index: Value, _: list[Value]) -> None:
        number = b.add(first, index)
        before = w.times(number, w.lanes)
        own = w.least(w.number(w.lanes), b.sub(tokens, before))
        near = b.add(start, before)
        known = b.add(near, own)
        offset = w.times(number, stride)
        query, target = w.at(queries, offset), w.at(mixed, offset)

        def each(step: Callable[[Value, Value], None]) -> None:
            """Of every head: its number, and where what it gets begins."""
            w.repeat(heads, lambda head, _: step(head, w.at(target, w.times(head, of_head))))

        def begin(head: Value, _: Value) -> None:
            w.store(w.all(float("-inf")), w.at(largest, w.times(head, w.lanes)))
            w.store(w.all(0.0), w.at(sums, w.times(head, w.lanes)))

        each(begin)

        def block(number: Value, _: list[Value]) -> None:
            first_key = w.times(number, BLOCK_KEYS)
            count = w.least(w.number(BLOCK_KEYS), b.sub(known, first_key))
            of_scores, skipped = w.times(count, w.lanes), w.times(first_key, dim)
            strides = (dim, of_head, of_scores)
            w.call(product, w.at(keys, skipped), query, scores, count, dim, heads, *strides, w.number(0))

            def weigh(head: Value, into: Value) -> None:
                column, place = w.at(scores, w.times(head, of_scores)), w.times(head, w.lanes)
                _hide(w, column, b.sub(near, first_key), count)
                kept = _softmax(w, column, count, w.at(largest, place), w.at(sums, place))
                with b.if_then(b.icmp_signed(">", number, w.number(0))):
                    _scale(w, into, dim, kept)

            each(weigh)
            sizes = (dim, count, heads, dim, of_scores, of_head)
            w.call(product_of_columns, w.at(values, skipped), scores, target, *sizes, number)

        w.repeat(b.sdiv(b.add(known, w.number(BLOCK_KEYS - 1)), w.number(BLOCK_KEYS)), block)

        def finish(head: Value, into: Value) -> None:
            there = b.icmp_signed("<", w.lane_numbers(), w.all_integers(own))
            total = w.load(w.at(sums, w.times(head, w.lanes)))
            _scale(w, into, dim, b.select(there, b.fdiv(w.all(1.0), total), w.all(0.0)))

        each(finish)

    w.repeat(b.sub(end, first), group)
    w.end()
    return w


def attend_scratch(copied: int, heads: int, dim: int, lanes: int) -> int:
    """Floats of scratch that ``attend`` needs: keys and values of as many tokens, if they are scattered;
    scores of a block, the largest so far and sums."""
    return 2 * copied * dim + heads * (BLOCK_KEYS + 2) * lanes


def _hide(w: Writer, scores: Value, near: Value, count: Value) -> None:
    """No query sees a key after its own: ``scores`` are of ``count`` keys, the ``near``-th of which is that
    of the first query."""
    b = w.build
    first = b.select(b.icmp_signed(">", near, w.number(0)), near, w.number(0))

    def key(index: Value, _: list[Value]) -> None:
        number = b.add(first, index)
        place = w.at(scores, w.times(number, w.lanes))
        earlier = b.icmp_signed("<", w.lane_numbers(), w.all_integers(b.sub(number, near)))
        w.store(b.select(earlier, w.all(float("-inf")), w.load(place)), place)

    w.repeat(b.sub(count, first), key, maybe_none=True)


def _softmax(w: Writer, scores: Value, count: Value, largest: Value, sums: Value) -> Value:
    """``exp(score - largest so far)`` of ``count`` keys in place; brings ``largest`` and ``sums`` of all keys
    so far up to date. What came of the keys before is worth so much now."""
    b = w.build

    def at(key: Value) -> Value:
        return w.at(scores, w.times(key, w.lanes))

    before = w.load(largest)
    top = w.repeat(count, lambda key, best: [w.larger(w.load(at(key)), best[0])], [before])[0]
    w.store(top, largest)

    def weigh(key: Value, totals: list[Value]) -> list[Value]:
        weight = _exponential(w, b.fsub(w.load(at(key)), top))
        w.store(weight, at(key))
        return [b.fadd(totals[0], weight)]

    kept = _exponential(w, b.fsub(before, top))
    w.store(w.repeat(count, weigh, [b.fmul(w.load(sums), kept)])[0], sums)
    return kept


def _scale(w: Writer, x: Value, rows: Value, factor: Value) -> None:
    """``x (rows, lanes)`` times ``factor``, in place."""

    def row(k: Value, _: list[Value]) -> None:
        at = w.at(x, w.times(k, w.lanes))
        w.store(w.build.fmul(w.load(at), factor), at)

    w.repeat(rows, row)


LARGEST_EXPONENT, LEAST_EXPONENT = 88.0, -87.0
LOG2_E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
EXPONENTIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
"""Of the polynomial for ``exp`` in Cephes' ``expf``: two units in the last place at the most."""


def _exponential(w: Writer, x: Value) -> Value:
    """``exp(x)``; 0 below ``LEAST_EXPONENT``, and no larger than that of ``LARGEST_EXPONENT``."""
    b = w.build
    bounded = w.larger(w.smaller(x, w.all(LARGEST_EXPONENT)), w.all(LEAST_EXPONENT))
    power = w.unary("rint", b.fmul(bounded, w.all(LOG2_E)))
    rest = w.fused(power, w.all(-LN2_HIGH), bounded)
    rest = w.fused(power, w.all(-LN2_LOW), rest)
    total = w.all(EXPONENTIAL[0])
    for coefficient in EXPONENTIAL[1:]:
        total = w.fused(total, rest, w.all(coefficient))
    total = w.fused(total, b.fmul(rest, rest), b.fadd(rest, w.all(1.0)))
    exponent = b.add(b.fptosi(power, w.module.integers), w.all_integers(127))
    raised = b.bitcast(b.shl(exponent, w.all_integers(23)), w.module.vector)
    seen = b.fcmp_ordered(">=", x, w.all(LEAST_EXPONENT))
    return b.select(seen, b.fmul(total, raised), w.all(0.0))
