"""Forms of PTX that compilers rarely write and ptxas accepts: registers passed to functions, variables accessed without
their state space, vectors of registers, and constant expressions."""

from __future__ import annotations

import numpy as np
import pytest
from simdevice import SimDevice

HEAD = """.version 8.8
.target sm_90a
.address_size 64
.global .align 4 .u32 counts[4] = {1 + 2 * 3, (1 << 4) | 1, -7 / 2, 5 > 3 ? 40 : 50};
.const .align 8 .f64 weights[2] = {1.5 + 2.5, -(0.5)};
.func (.reg .b32 sum) added(.reg .b32 a, .reg .b32 b) {
    .reg .pred large;
    add.u32 sum, a, b;
    setp.gt.u32 large, sum, 100;
    @large ret;
    add.u32 sum, sum, 1000;
}
.func (.param .b32 out) doubled(.param .b32 in) {
    .reg .b32 t;
    ld.param.u32 t, [in];
    shl.b32 t, t, 1;
    st.param.b32 [out], t;
    ret;
}
.visible .entry k(.param .u64 out)
{
    .reg .pred p<4>;
    .reg .b32 r<8>;
    .reg .b64 d<4>;
    .reg .f32 f<4>;
    .reg .v4 .f32 four;
    .reg .v2 .b32 two<2>;
    .shared .align 8 .b32 buffer[64];
    .local .align 8 .b32 own[4];
    ld.param.u64 d1, [out];
    cvta.to.global.u64 d1, d1;
    mov.u32 r1, %tid.x;
    mad.wide.u32 d2, r1, 4, d1;
    setp.lt.u32 p1, r1, 2;
    mov.u32 r2, 0;
    LINES
    st.global.u32 [d2], r2;
    ret;
}
"""


def run(lines):
    out = np.zeros(4, np.uint32)
    SimDevice(HEAD.replace("LINES", lines), ptx=True).launch("k", 1, 4, out)
    return out.tolist()


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        ("call (r2), doubled, (r1);", [0, 2, 4, 6]),
        ("call (r2), doubled, (21);", [42] * 4),
        ("@p1 call (r2), doubled, (r1);", [0, 2, 0, 0]),
        ("call (r2), added, (r1, 99);", [1099, 1100, 101, 102]),
        ("call (r2), added, (r1, r1); call (r2), doubled, (r2);", [2000, 2004, 2008, 2012]),
        (".param .b32 x; st.param.b32 [x], r1; call (r2), doubled, (x);", [0, 2, 4, 6]),
        ("st.u32 [buffer+8], r1; bar.sync 0; ld.u32 r2, [buffer+8];", [3] * 4),
        ("st.u32 [own+4], r1; ld.u32 r2, [own+4];", [0, 1, 2, 3]),
        ("st.u32 [buffer], r2; bar.sync 0; atom.add.u32 r2, [buffer], 1; bar.sync 0; ld.u32 r2, [buffer];", [4] * 4),
        ("ld.u32 r2, [counts+4];", [17] * 4),
        ("ld.global.u32 { r2 }, [ counts + 0 ]; st.shared.b32 [ buffer ], { r2 };", [7] * 4),
        ("ld.global.u32 r2, [counts + 2 * 4];", [2**32 - 3] * 4),
        ("ld.global.u32 r2, [counts+(3 << 2)];", [40] * 4),
        (".reg .f64 w; ld.const.f64 w, [weights]; cvt.rzi.u32.f64 r2, w;", [4] * 4),
        ("mov.f32 four.x, 2.0; mov.f32 four.w, 3.0; add.f32 f1, four.r, four.a; cvt.rzi.u32.f32 r2, f1;", [5] * 4),
        ("mov.b32 two1.x, r1; mov.b32 two1.y, 7; st.local.v2.b32 [own], two1; ld.local.b32 r2, [own+4];", [7] * 4),
        ("mov.u32 r3, 9; mov.v2.b32 {r2, r3}, {r3, r1};", [9] * 4),
        ("mov.v2.b32 two0, {r1, 5}; mov.v2.b32 two1, two0; add.u32 r2, two1.x, two1.y;", [5, 6, 7, 8]),
        ("add .u32 r2, r1, (1 + 1) * 2;", [4, 5, 6, 7]),
        ("mov.u32 r2, WARP_SZ == 32 && 0x10 != 017;", [1] * 4),
    ],
)
def test_forms_that_compilers_rarely_write(lines, want):
    assert run(lines) == want
