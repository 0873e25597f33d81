"""Memory of variable size on the stack: alloca, stacksave and stackrestore. NVRTC does not emit them."""

from __future__ import annotations

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.lockstep.report import KernelFault
from cudakit.sim.ptx.ir import PtxError

HEAD = """.version 8.6
.target sm_90a
.address_size 64
"""
# y[t] = 0 + 1 + ... + t, through an array of t + 1 numbers; the last MORE elements are past its end
SUMS = """.visible .entry sums(.param .u64 py) {
  .reg .b64 %y, %array, %bytes, %at, %offset; .reg .b32 %t, %i, %v, %sum, %end; .reg .pred %p;
  ld.param.u64 %y, [py];
  mov.u32 %t, %tid.x;
  mad.wide.u32 %y, %t, 4, %y;
  mad.lo.u32 %i, %t, 4, 4;
  cvt.u64.u32 %bytes, %i;
  alloca.u64 %array, %bytes;
  mov.u32 %i, 0;
  add.u32 %end, %t, MORE;
STORE:
  mad.wide.u32 %at, %i, 4, %array;
  st.local.u32 [%at], %i;
  add.u32 %i, %i, 1;
  setp.le.u32 %p, %i, %end;
  @%p bra STORE;
  mov.u32 %i, 0;
  mov.u32 %sum, 0;
LOAD:
  mad.wide.u32 %at, %i, 4, %array;
  ld.local.u32 %v, [%at];
  add.u32 %sum, %sum, %v;
  add.u32 %i, %i, 1;
  setp.le.u32 %p, %i, %t;
  @%p bra LOAD;
  st.global.u32 [%y], %sum;
  ret;
}
"""
# y[t] = t, through a variable of a function that warps call with 16 and SIZE bytes on the stack, and in which they meet
MEETING = """.func (.param .b32 out) keep(.param .b32 n) {
  .local .align 4 .b8 own[16];
  .reg .b32 %n, %v, %w; .reg .pred %p;
  ld.param.b32 %n, [n];
  st.local.u32 [own], %n;
  mov.u32 %w, %tid.x;
  setp.lt.u32 %p, %w, 32;
  @%p bar.arrive 2, 64;
  bar.sync 1, 64;
  ld.local.u32 %v, [own];
  st.param.b32 [out], %v;
  ret;
}
.visible .entry meeting(.param .u64 py) {
  .reg .b64 %y, %a, %s; .reg .b32 %t, %v; .reg .pred %p;
  ld.param.u64 %y, [py];
  mov.u32 %t, %tid.x;
  mad.wide.u32 %y, %t, 4, %y;
  setp.ge.u32 %p, %t, 32;
  mov.u64 %s, 16;
  @%p mov.u64 %s, SIZE;
  alloca.u64 %a, %s, 16;
  st.local.u32 [%a], %t;
  @!%p bra CALL;
  bar.sync 2, 64;
CALL:
  {
    .param .b32 given; .param .b32 result;
    st.param.b32 [given], %t;
    call.uni (result), keep, (given);
    ld.param.b32 %v, [result];
  }
  st.global.u32 [%y], %v;
  ret;
}
"""
# y[t] is the value that WHAT leaves in %v; %a is the first allocation, of 16 bytes, which holds 7
STEPS = """.visible .entry steps(.param .u64 py) {
  .reg .b64 %y, %a, %b, %c, %saved; .reg .b32 %t, %v, %narrow; .reg .pred %p;
  ld.param.u64 %y, [py];
  mov.u32 %t, %tid.x;
  mad.wide.u32 %y, %t, 4, %y;
  alloca.u64 %a, 16, 16;
  mov.u32 %v, 7;
  st.local.u32 [%a], %v;
  stacksave.u64 %saved;
  WHAT
  st.global.u32 [%y], %v;
  ret;
}
"""
# fill(n) stores n to n words of its own on the stack, calls itself with n - 1, and returns the sum of its words and of
# the result
CALLS = """.func (.param .b32 out) fill(.param .b32 n) {
  .reg .b64 %array, %bytes, %at; .reg .b32 %n, %i, %v, %sum; .reg .pred %p;
  ld.param.b32 %n, [n];
  mov.u32 %sum, 0;
  setp.eq.u32 %p, %n, 0;
  @%p bra DONE;
  mul.wide.u32 %bytes, %n, 4;
  alloca.u64 %array, %bytes, 4;
  mov.u32 %i, 0;
STORE:
  mad.wide.u32 %at, %i, 4, %array;
  st.local.u32 [%at], %n;
  add.u32 %i, %i, 1;
  setp.lt.u32 %p, %i, %n;
  @%p bra STORE;
  sub.u32 %v, %n, 1;
  {
    .param .b32 given; .param .b32 result;
    st.param.b32 [given], %v;
    call.uni (result), fill, (given);
    ld.param.b32 %sum, [result];
  }
  mov.u32 %i, 0;
LOAD:
  mad.wide.u32 %at, %i, 4, %array;
  ld.local.u32 %v, [%at];
  add.u32 %sum, %sum, %v;
  add.u32 %i, %i, 1;
  setp.lt.u32 %p, %i, %n;
  @%p bra LOAD;
DONE:
  st.param.b32 [out], %sum;
  ret;
}
.visible .entry calls(.param .u64 py) {
  .reg .b64 %y; .reg .b32 %t, %v;
  ld.param.u64 %y, [py];
  mov.u32 %t, %tid.x;
  mad.wide.u32 %y, %t, 4, %y;
  rem.u32 %v, %t, 6;
  {
    .param .b32 given; .param .b32 result;
    st.param.b32 [given], %v;
    call.uni (result), fill, (given);
    ld.param.b32 %v, [result];
  }
  st.global.u32 [%y], %v;
  ret;
}
"""


def run(text: str, name: str) -> np.ndarray:
    y = np.zeros(64, np.uint32)
    SimDevice(HEAD + text, ptx=True).launch(name, 1, 64, y, checks=ALL_CHECKS)
    return y


def steps(what: str) -> np.ndarray:
    return run(STEPS.replace("WHAT", what), "steps")


def test_each_thread_allocates_its_own_size() -> None:
    t = np.arange(64)
    assert (run(SUMS.replace("MORE", "0"), "sums") == t * (t + 1) // 2).all()


def test_an_access_past_the_end_is_reported() -> None:
    with pytest.raises(KernelFault, match="out-of-bounds access: local store of 4 bytes at byte 20 of local memory"):
        run(SUMS.replace("MORE", "1"), "sums")


def test_a_restored_stack_is_used_again() -> None:
    both = "alloca.u64 %b, 8; stackrestore.u64 %saved; alloca.u64 %c, 8; sub.u64 %b, %b, %c; cvt.u32.u64 %v, %b;"
    assert (steps(both) == 0).all()
    assert (steps("alloca.u64 %b, 8; stackrestore.u64 %saved; ld.local.u32 %v, [%a];") == 7).all()


@pytest.mark.parametrize("align", [1, 4, 64, 256])
def test_allocations_are_aligned_and_apart(align: int) -> None:
    found = steps(f"alloca.u64 %b, 1, 1; alloca.u64 %c, 8, {align}; cvt.u32.u64 %v, %c; rem.u32 %v, %v, {align};")
    assert (found == 0).all()
    apart = "alloca.u64 %b, 16; mov.u32 %v, 9; st.local.u32 [%b], %v; st.local.u32 [%b+12], %v; ld.local.u32 %v, [%a];"
    assert (steps(apart) == 7).all()


def test_addresses_of_32_bits() -> None:
    what = "alloca.u32 %narrow, 4; st.local.u32 [%narrow], %t; ld.local.u32 %v, [%narrow];"
    assert (steps(what) == np.arange(64)).all()


def test_a_guard_allocates_for_its_lanes_only() -> None:
    what = "setp.lt.u32 %p, %t, 40; mov.u64 %b, %a; @%p alloca.u64 %b, 8; sub.u64 %b, %b, %a; cvt.u32.u64 %v, %b;"
    assert steps(what).tolist() == [16] * 40 + [0] * 24


def test_a_generic_address_works() -> None:
    what = "alloca.u64 %b, 8; cvta.local.u64 %c, %b; st.u32 [%c], %t; ld.local.u32 %v, [%b];"
    assert (steps(what) == np.arange(64)).all()


@pytest.mark.parametrize(
    ("what", "report"),
    [
        ("alloca.u64 %b, 8; ld.local.u32 %v, [%b];", "uninitialised read"),
        # stored before the stack was restored: the new allocation is another variable
        (
            "alloca.u64 %b, 8; st.local.u32 [%b], %v; stackrestore.u64 %saved; alloca.u64 %c, 8; "
            "ld.local.u32 %v, [%c];",
            "uninitialised read",
        ),
        (
            "alloca.u64 %b, 8; st.local.u32 [%b], %v; stackrestore.u64 %saved; ld.local.u32 %v, [%b];",
            "out-of-bounds access: local load of 4 bytes",
        ),
        ("alloca.u64 %b, 100000;", "stack overflow: alloca of 100000 bytes"),
        ("mov.u64 %c, -8; alloca.u64 %b, %c;", "stack overflow: alloca of 18446744073709551608 bytes"),
        ("add.u64 %c, %saved, 8; stackrestore.u64 %c;", "out-of-bounds access: stackrestore of"),
        ("mov.u64 %c, 0; stackrestore.u64 %c;", "out-of-bounds access: stackrestore of 0"),
    ],
)
def test_misuse_is_reported(what: str, report: str) -> None:
    with pytest.raises(KernelFault) as caught:
        steps(what)
    assert str(caught.value).startswith(report)


def test_functions_that_call_themselves_have_frames_of_their_own() -> None:
    n = np.arange(64) % 6
    assert (run(CALLS, "calls") == n * (n + 1) * (2 * n + 1) // 6).all()


@pytest.mark.parametrize("checks", [frozenset(), ALL_CHECKS])
@pytest.mark.parametrize("size", [16, 160])
def test_a_function_keeps_its_variables_if_its_callers_have_allocated_different_sizes(size, checks) -> None:
    y = np.zeros(64, np.uint32)
    SimDevice(HEAD + MEETING.replace("SIZE", str(size)), ptx=True).launch("meeting", 1, 64, y, checks=checks)
    assert (y == np.arange(64)).all()


@pytest.mark.parametrize(
    ("what", "valid"),
    [
        ("alloca.u32 %narrow, 64, 16;", True),
        ("alloca.u64 %b, %saved, 8388608;", True),
        ("alloca.u64 %b, 8, 3;", False),
        ("alloca.u64 %b, 8, 0;", False),
        ("alloca.u64 %b, 8, 16777216;", False),
        ("alloca.u64 %b, 8, %t;", False),
        ("alloca.u64 %narrow, %saved;", False),
        ("alloca.u32 %b, %t;", False),
        ("alloca.b64 %b, %saved;", False),
        ("alloca.u64 _, %saved;", False),
        ("stacksave.u64 %narrow;", False),
        ("stackrestore.u64 64;", False),
    ],
)
def test_forms_are_those_of_ptxas(what: str, valid: bool) -> None:
    """The verdicts are those of ptxas 13.5."""
    text = HEAD + STEPS.replace("WHAT", what)
    if valid:
        SimDevice(text, ptx=True)
    else:
        with pytest.raises(PtxError):
            SimDevice(text, ptx=True)
