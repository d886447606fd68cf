"""The two passes of a resize in LLVM's language, for vectors of 32 bytes (AVX2).

A pass sums uint8 pixels times int16 weights in int32, adds a half, shifts, and clips to a byte. One
instruction (`pmaddwd`) multiplies eight pairs of pixels by eight of weights and adds the two of each pair:

 - along the height a pair are pixels one above the other, and neighbours along the row are side by side in a
   vector;
 - along the width a pair are neighbours of one channel. A vector has two pairs of each of the three channels:
   four pixels, 12 bytes next to each other in a picture. Of the 16 that are read the last four count nothing.

No optimiser runs: the loops are written for the vectors. No sum overflows: with 22 bits after the point, the
most there are, 255 times the sizes of the weights, which add up to less than two, is below 2**31.
"""

from __future__ import annotations

ROW_BYTES = 32
"""Of a row of a plane that `down` reads and writes at once: rows have room for a multiple of it."""
COLUMNS = 4
"""Outputs of a row that `across` computes at once."""
TAPS = 4
"""Inputs that `across` takes at once."""
BEYOND = 4
"""Bytes that `across` reads after the last tap."""
LAYOUT = (0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3)
"""Which of four taps' weights are where in the vector that `across` reads."""

DECLARED = """
declare <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>)
declare <16 x i16> @llvm.x86.avx2.packssdw(<8 x i32>, <8 x i32>)
declare <32 x i8> @llvm.x86.avx2.packuswb(<16 x i16>, <16 x i16>)
declare <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8>, <32 x i8>)
"""


def _loop(name: str, count: str, body: str, *carried: tuple[str, str, str, str]) -> str:
    """`body` with %`name` from 0 to `count` - 1, at least once. Carried are (type, name, first, next)."""
    values = "\n".join(
        f"{kind} = phi {of} [{first}, %before.{name}], [{following}, %end.{name}]"
        for of, kind, first, following in (("i64", f"%{name}", "0", f"%next.{name}"), *carried)
    )
    return f"""
br label %before.{name}
before.{name}:
br label %in.{name}
in.{name}:
{values}
{body}
br label %end.{name}
end.{name}:
%next.{name} = add i64 %{name}, 1
%more.{name} = icmp slt i64 %next.{name}, {count}
br i1 %more.{name}, label %in.{name}, label %after.{name}
after.{name}:
"""


def _order(*places: int) -> str:
    return f"<{len(places)} x i32> <{', '.join(f'i32 {place}' for place in places)}>"


def _rounding() -> str:
    """%half and %shift, of eight sums."""
    lines = [
        "%bits = trunc i64 %precision to i32",
        "%less = sub i32 %bits, 1",
        "%one.half = shl i32 1, %less",
    ]
    for name, value in (("half", "%one.half"), ("shift", "%bits")):
        lines.append(f"%{name}.0 = insertelement <8 x i32> undef, i32 {value}, i32 0")
        lines.append(
            f"%{name} = shufflevector <8 x i32> %{name}.0, <8 x i32> undef, <8 x i32> zeroinitializer"
        )
    return "\n".join(lines)


def _packed(sums: list[str]) -> str:
    """%bytes: the shifted and clipped ones of four vectors of sums; each half of them in itself."""
    lines = []
    for number, total in enumerate(sums):
        lines.append(f"%shifted.{number} = ashr <8 x i32> {total}, %shift")
    for name, a, b in (("low", 0, 1), ("high", 2, 3)):
        lines.append(
            f"%{name}.words = call <16 x i16> @llvm.x86.avx2.packssdw"
            f"(<8 x i32> %shifted.{a}, <8 x i32> %shifted.{b})"
        )
    lines.append(
        "%bytes = call <32 x i8> @llvm.x86.avx2.packuswb(<16 x i16> %low.words, <16 x i16> %high.words)"
    )
    return "\n".join(lines)


def _at(name: str, base: str, offset: str, of: str = "i8") -> str:
    return f"%{name} = getelementptr {of}, ptr {base}, i64 {offset}"


def across() -> str:
    """`across(pixels, offsets, weights, out, rows, groups, rounds, stride, out_stride, plane, precision)`:
    rows of pixels, `stride` apart, along the width. For each output there are the int64 offset of the first
    byte that it reads, and `rounds` vectors of 16 int16 weights (`LAYOUT`). Outputs are `groups` of
    `COLUMNS`, in planes of one channel `plane` apart."""
    # Of 12 bytes rgbrgbrgbrgb: r0 r1 g0 g1 b0 b1 - - to the lower half, and of the others to the upper one.
    pick = [
        place
        for pixel in (0, 6)
        for first in (pixel, pixel + 1, pixel + 2, None)
        for place in ((first, 255, first + 3, 255) if first is not None else (255,) * 4)
    ]
    choice = f"<32 x i8> <{', '.join(f'i8 {place}' for place in pick)}>"
    taps = ["%into = mul i64 %round, 12", "%of = shl i64 %round, 4"]
    for k in range(COLUMNS):
        taps += [
            _at(f"read.{k}", f"%source.{k}", "%into"),
            f"%pixels.{k} = load <16 x i8>, ptr %read.{k}, align 1",
            f"%twice.{k} = shufflevector <16 x i8> %pixels.{k}, <16 x i8> undef, "
            + _order(*range(16), *range(16)),
            f"%picked.{k} = call <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8> %twice.{k}, {choice})",
            f"%words.{k} = bitcast <32 x i8> %picked.{k} to <16 x i16>",
            _at(f"weight.{k}", f"%weights.{k}", "%of", "i16"),
            f"%by.{k} = load <16 x i16>, ptr %weight.{k}, align 2",
            f"%product.{k} = call <8 x i32> @llvm.x86.avx2.pmadd.wd"
            f"(<16 x i16> %words.{k}, <16 x i16> %by.{k})",
            f"%total.{k} = add <8 x i32> %sum.{k}, %product.{k}",
        ]
    carried = [("<8 x i32>", f"%sum.{k}", "%half", f"%total.{k}") for k in range(COLUMNS)]
    row = ["%row.at = mul i64 %row, %stride", _at("line", "%pixels", "%row.at")]
    row += [_at(f"source.{k}", "%line", f"%offset.{k}") for k in range(COLUMNS)]
    row.append(_loop("round", "%rounds", "\n".join(taps), *carried))
    # The halves of sums are added; the half for rounding is in both, and taken off once.
    for a, b in ((0, 1), (2, 3)):
        for name, order in (
            ("lower", (0, 1, 2, 3, 8, 9, 10, 11)),
            ("upper", (4, 5, 6, 7, 12, 13, 14, 15)),
        ):
            row.append(
                f"%{name}.{a} = shufflevector <8 x i32> %total.{a}, <8 x i32> %total.{b}, {_order(*order)}"
            )
        row.append(f"%both.{a} = add <8 x i32> %lower.{a}, %upper.{a}")
        row.append(f"%whole.{a} = sub <8 x i32> %both.{a}, %half")
    row.append(_packed(["%whole.0", "%whole.2", "%whole.0", "%whole.2"]))
    # The lower half has rgb- of columns 0 and 2, the upper one of 1 and 3.
    planes = [place + channel for channel in range(3) for place in (0, 16, 4, 20)]
    row.append(
        f"%planes = shufflevector <32 x i8> %bytes, <32 x i8> undef, {_order(*planes, 0, 0, 0, 0)}\n"
        "%words = bitcast <16 x i8> %planes to <4 x i32>\n"
        "%out.row = mul i64 %row, %out.stride\n%column = shl i64 %group, 2\n"
        "%to.0 = add i64 %out.row, %column\n%to.1 = add i64 %to.0, %plane\n%to.2 = add i64 %to.1, %plane"
    )
    for channel in range(3):
        row += [
            f"%four.{channel} = extractelement <4 x i32> %words, i32 {channel}",
            _at(f"target.{channel}", "%out", f"%to.{channel}"),
            f"store i32 %four.{channel}, ptr %target.{channel}, align 1",
        ]
    group = ["%first = shl i64 %group, 2", "%per = shl i64 %rounds, 4"]
    for k in range(COLUMNS):
        group += [
            f"%index.{k} = add i64 %first, {k}",
            _at(f"where.{k}", "%offsets", f"%index.{k}", "i64"),
            f"%offset.{k} = load i64, ptr %where.{k}, align 8",
            f"%skipped.{k} = mul i64 %index.{k}, %per",
            _at(f"weights.{k}", "%weights", f"%skipped.{k}", "i16"),
        ]
    group.append(_loop("row", "%rows", "\n".join(row)))
    return f"""
define void @across(ptr noalias %pixels, ptr noalias %offsets, ptr noalias %weights, ptr noalias %out,
    i64 %rows, i64 %groups, i64 %rounds, i64 %stride, i64 %out.stride, i64 %plane, i64 %precision) {{
{_rounding()}
{_loop("group", "%groups", chr(10).join(group))}
ret void
}}
"""


def down() -> str:
    """`down(rows, offsets, weights, out, outputs, planes, columns, pairs, stride, plane, precision)`: rows,
    `stride` apart, of planes, `plane` apart, along the height. For each output row there are the int64 offset
    of the first row that it reads, and `pairs` pairs of int16 weights. `out` is (outputs, planes, columns)
    and room for `ROW_BYTES` more, which are written too."""

    def interleaved(name: str, a: str, b: str, start: int) -> str:
        """Eight bytes of each half of the two, from `start` on."""
        order = [
            place for half in (0, 16) for i in range(start, start + 8) for place in (half + i, 32 + half + i)
        ]
        return f"%{name} = shufflevector <32 x i8> {a}, <32 x i8> {b}, {_order(*order)}"

    taps = [
        "%below = shl i64 %pair, 1",
        "%away = mul i64 %below, %stride",
        _at("upper", "%source", "%away"),
        _at("lower", "%upper", "%stride"),
        "%a = load <32 x i8>, ptr %upper, align 1",
        "%b = load <32 x i8>, ptr %lower, align 1",
        _at("weight", "%own", "%pair", "i32"),
        "%two = load i32, ptr %weight, align 4",
        "%two.0 = insertelement <8 x i32> undef, i32 %two, i32 0",
        "%twos = shufflevector <8 x i32> %two.0, <8 x i32> undef, <8 x i32> zeroinitializer",
        "%by = bitcast <8 x i32> %twos to <16 x i16>",
        interleaved("pairs.0", "%a", "%b", 0),
        interleaved("pairs.1", "%a", "%b", 8),
    ]
    for k in range(4):
        taps += [
            interleaved(f"wide.{k}", f"%pairs.{k // 2}", "zeroinitializer", k % 2 * 8),
            f"%words.{k} = bitcast <32 x i8> %wide.{k} to <16 x i16>",
            f"%product.{k} = call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> %words.{k}, <16 x i16> %by)",
            f"%total.{k} = add <8 x i32> %sum.{k}, %product.{k}",
        ]
    carried = [("<8 x i32>", f"%sum.{k}", "%half", f"%total.{k}") for k in range(4)]
    block = [
        "%x = shl i64 %block, 5",
        _at("source", "%plane.source", "%x"),
        _loop("pair", "%pairs", "\n".join(taps), *carried),
        _packed([f"%total.{k}" for k in range(4)]),
        _at("to", "%plane.out", "%x"),
        "store <32 x i8> %bytes, ptr %to, align 1",
    ]
    channel = [
        "%in.plane = mul i64 %channel, %plane",
        _at("plane.source", "%row.source", "%in.plane"),
        "%row.planes = mul i64 %output, %planes",
        "%number = add i64 %row.planes, %channel",
        "%out.at = mul i64 %number, %columns",
        _at("plane.out", "%out", "%out.at"),
        _loop("block", "%blocks", "\n".join(block)),
    ]
    output = [
        _at("where", "%offsets", "%output", "i64"),
        "%offset = load i64, ptr %where, align 8",
        _at("row.source", "%rows", "%offset"),
        "%before = mul i64 %output, %pairs",
        _at("own", "%weights", "%before", "i32"),
        _loop("channel", "%planes", "\n".join(channel)),
    ]
    return f"""
define void @down(ptr noalias %rows, ptr noalias %offsets, ptr noalias %weights, ptr noalias %out,
    i64 %outputs, i64 %planes, i64 %columns, i64 %pairs, i64 %stride, i64 %plane, i64 %precision) {{
{_rounding()}
%more.columns = add i64 %columns, 31
%blocks = lshr i64 %more.columns, 5
{_loop("output", "%outputs", chr(10).join(output))}
ret void
}}
"""
