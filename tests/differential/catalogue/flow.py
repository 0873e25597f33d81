"""Control flow: calls with parameters by value and by array, recursion, branches by index, loops and guards."""

from __future__ import annotations

from collections.abc import Iterator

from ..forms import Form, statements


def forms() -> Iterator[Form]:
    yield from _calls()
    yield from _branches()


def _function(results: str, parameters: str, body: str, name: str = "f$") -> str:
    return f".func {results} {name}({parameters}) {{ {body} ret; }}"


def _calls() -> Iterator[Form]:
    group = "call"
    for kind in ("b32", "u64", "f32", "f64", "b16", "s32"):
        size = "b" + kind[1:]
        outside = _function(
            f"(.param .{size} r)",
            f".param .{size} p, .param .{size} q",
            f".reg .{size} x, y; ld.param.{size} x, [p]; ld.param.{size} y, [q]; xor.{size} x, x, y; "
            f"st.param.{size} [r], x;",
        )
        text = f"{{ .param .{size} r; .param .{size} p; .param .{size} q; st.param.{size} [p], a; "
        text += f"st.param.{size} [q], b; call (r), f$, (p, q); ld.param.{size} d0, [r]; }}"
        yield statements(group, text, f"{kind} {kind}", kind, outside=outside)
        yield statements(group, text.replace("call (r)", "call.uni (r)"), f"{kind} {kind}", kind, outside=outside)
    swapped = _function(
        "(.param .align 8 .b8 r[16])",
        ".param .align 8 .b8 p[16]",
        ".reg .b32 x, y; .reg .b64 z; ld.param.v2.b32 {x, y}, [p]; ld.param.b64 z, [p+8]; "
        "st.param.b64 [r], z; st.param.b32 [r+8], y; st.param.b32 [r+12], x;",
    )
    text = (
        "{ .param .align 8 .b8 r[16]; .param .align 8 .b8 p[16]; st.param.b64 [p], a; st.param.v2.b32 [p+8], {b, c}; "
    )
    text += "call (r), f$, (p); ld.param.b64 d0, [r]; ld.param.b32 d1, [r+8]; ld.param.b32 d2, [r+12]; }"
    yield statements(group, text, "b64 b32 b32", "b64 b32 b32", outside=swapped)
    nothing = _function("", ".param .b64 p, .param .b32 q", ".reg .b64 x; .reg .b32 y; ld.param.b64 x, [p]; "
                        "ld.param.b32 y, [q]; st.b32 [x], y;")  # fmt: skip
    text = "{ .param .b64 p; .param .b32 q; st.param.b64 [p], %cell; st.param.b32 [q], a; call f$, (p, q); } "
    text += "ld.global.b32 d0, [%cell];"
    yield statements(group, text, "b32", "b32", outside=nothing)
    factorial = (
        ".func (.param .b32 r) f$(.param .b32 p) { .reg .b32 x, y; .reg .pred q; ld.param.b32 x, [p]; "
        "setp.gt.u32 q, x, 1; @q bra more; st.param.b32 [r], 1; ret; more: sub.u32 y, x, 1; "
        "{ .param .b32 s; .param .b32 t; st.param.b32 [t], y; call (s), f$, (t); ld.param.b32 y, [s]; } "
        "mul.lo.u32 x, x, y; st.param.b32 [r], x; ret; }"
    )
    text = "{ .param .b32 r; .param .b32 p; st.param.b32 [p], a; call (r), f$, (p); ld.param.b32 d0, [r]; }"
    yield statements(group, text, "u32:below13", "u32", outside=factorial)
    text = "setp.gt.u32 y, a, 5; mov.b32 d0, 0; @!y bra past; " + text + " past: mov.b32 d1, 1;"
    yield statements(group, text, "u32:below13", "u32 u32", declare=".reg .pred y;", outside=factorial)
    twice = _function("(.param .b32 r)", ".param .b32 p", ".reg .b32 x; ld.param.b32 x, [p]; add.u32 x, x, x; "
                      "st.param.b32 [r], x;", "g$")  # fmt: skip
    nested = _function("(.param .b32 r)", ".param .b32 p", ".reg .b32 x; ld.param.b32 x, [p]; { .param .b32 s; "
                       ".param .b32 t; st.param.b32 [t], x; call (s), g$, (t); ld.param.b32 x, [s]; } "
                       "xor.b32 x, x, 5; st.param.b32 [r], x;")  # fmt: skip
    text = "{ .param .b32 r; .param .b32 p; st.param.b32 [p], a; call (r), f$, (p); ld.param.b32 d0, [r]; }"
    yield statements(group, text, "u32", "u32", outside=f"{twice} {nested}")
    framed = _function("(.param .b32 r)", ".param .b32 p", ".local .align 4 .b8 own[16]; .reg .b32 x, y; .reg .b64 z; "
                       "ld.param.b32 x, [p]; st.local.b32 [own+4], x; mov.u64 z, own; ld.local.b32 y, [z+4]; "
                       "not.b32 y, y; st.param.b32 [r], y;")  # fmt: skip
    yield statements(group, text, "u32", "u32", outside=framed)


def _branches() -> Iterator[Form]:
    group = "branches"
    text = "targets: .branchtargets one, two, three, four; brx.idx a, targets; one: mov.b32 d0, 11; bra end; "
    text += "two: mov.b32 d0, 22; bra end; three: mov.b32 d0, b; bra end; four: not.b32 d0, b; end: mov.b32 d1, 1;"
    yield statements(group, text, "u32:below4 b32", "b32 b32")
    yield statements(group, text.replace("brx.idx", "brx.idx.uni").replace("a, targets", "z, targets"), "u32 b32",
                     "b32 b32", declare=".reg .b32 z; mov.u32 z, 2;")  # fmt: skip
    text = "mov.b32 d0, 0; mov.b32 z, a; loop: setp.eq.u32 y, z, 0; @y bra end; add.u32 d0, d0, b; sub.u32 z, z, 1; "
    text += "bra loop; end: mov.b32 d1, 1;"
    yield statements(group, text, "u32:below40 u32", "u32 u32", declare=".reg .b32 z; .reg .pred y;")
    text = (
        "setp.lt.s32 y, a, b; @y bra less; sub.s32 d0, a, b; bra.uni end; less: sub.s32 d0, b, a; end: mov.b32 d1, 1;"
    )
    yield statements(group, text, "s32 s32", "s32 u32", declare=".reg .pred y;")
    text = "mov.b32 d0, a; setp.gt.s32 y, a, b; @y add.u32 d0, d0, 5; @!y xor.b32 d0, d0, b; @y shl.b32 d0, d0, 1;"
    yield statements(group, text, "s32 s32", "s32", declare=".reg .pred y;")
    text = "mov.b32 d0, a; setp.gt.u32 y, b, 3; @y ret; not.b32 d0, a;"
    text = text.replace("@y ret;", "@y bra end;") + " end: mov.b32 d1, 1;"
    yield statements(group, text, "u32 u32:below8", "u32 u32", declare=".reg .pred y;")
    text = "mov.b32 d0, 0; mov.b32 z, 0; outer: mov.b32 w, 0; inner: mad.lo.u32 d0, z, w, d0; add.u32 w, w, 1; "
    text += "setp.lt.u32 y, w, b; @y bra inner; add.u32 z, z, 1; setp.lt.u32 y, z, a; @y bra outer; mov.b32 d1, w;"
    yield statements(group, text, "u32:below9 u32:below7", "u32 u32", declare=".reg .b32 z, w; .reg .pred y;")
