"""torch's attention kernels as peers, one per backend of scaled_dot_product_attention.

With lengths per batch entry, torch has no kernel for padded arrays except with a mask. Its other kernels take packed
rows, without padding; the rows are packed before the work is timed, as by a user who keeps them packed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from cudakit import ops

FLASH, CUDNN, EFFICIENT, MATH, MASKED = (
    f"peer:torch-{name}" for name in ("flash", "cudnn", "efficient", "math", "masked")
)
_BACKENDS = {
    FLASH: "FLASH_ATTENTION",
    CUDNN: "CUDNN_ATTENTION",
    EFFICIENT: "EFFICIENT_ATTENTION",
    MATH: "MATH",
}


def refusal(name: str, shape: tuple[int, ...], dtype: str, options: Mapping[str, Any]) -> str | None:
    """Return the reason why a peer does not support a shape of the family, or None."""
    _, heads, key_heads, queries, keys, _ = shape
    padded = bool(options.get("padded"))
    if name == MASKED and not padded:
        return "a mask is needed for lengths per batch entry only"
    if name == MATH and padded:
        return "lengths per batch entry not supported"
    if dtype == "float32" and name in (FLASH, CUDNN):
        return "only float16 and bfloat16 supported"
    if name == EFFICIENT and heads != key_heads:
        return "grouped queries not supported"
    if options.get("causal") and queries != keys:
        return "torch aligns the causal limit at the beginning: other masks if queries and keys differ in number"
    return None


def backend(name: str) -> AbstractContextManager[Any]:
    """Return a context in which scaled_dot_product_attention uses only the peer's backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if name not in _BACKENDS:
        return nullcontext()
    chosen: AbstractContextManager[Any] = sdpa_kernel(getattr(SDPBackend, _BACKENDS[name]))
    return chosen


def store(output: Any, result: Any, lengths: Any) -> None:
    """Copy the result of a call to the output. lengths: of each batch entry, or None; other rows become 0."""
    if lengths is None:
        output.copy_(result)
        return
    counts = lengths[:, 0].tolist()
    output.zero_()
    if result.is_nested:
        result = result.transpose(1, 2).values()
    if result.ndim == 4:
        result = _packed(result, counts)
    for own, part in zip(output, result.split(counts), strict=True):
        own[:, : len(part)] = part.transpose(0, 1)


def _packed(x: Any, counts: list[int]) -> Any:
    """Return the first rows of each batch entry as one tensor (rows, heads, d)."""
    return torch.cat([own[:, :n].transpose(0, 1) for own, n in zip(x, counts, strict=True)])


def _offsets(counts: list[int], device: Any) -> Any:
    sums = torch.tensor([0, *counts]).cumsum(0)
    return sums.to(device=device, dtype=torch.int32)


def _varlen(q: Any, k: Any, v: Any, lengths: Any, causal: bool, scale: float | None) -> Callable[[], Any]:
    """The kernel of torch.nn.attention.varlen.varlen_attn, whose parameters differ between releases of torch."""
    queries, keys = lengths[:, 0].tolist(), lengths[:, 1].tolist()
    rows = [_packed(x, counts) for x, counts in ((q, queries), (k, keys), (v, keys))]
    ends = [_offsets(counts, q.device) for counts in (queries, keys)]
    most = max(queries), max(keys)
    attend = torch.ops.aten._flash_attention_forward
    return lambda: attend(*rows, *ends, *most, 0.0, causal, False, scale=scale)[0]


def _nested(q: Any, k: Any, v: Any, lengths: Any, causal: bool, scale: float | None) -> Callable[[], Any]:
    queries, keys = lengths[:, 0].tolist(), lengths[:, 1].tolist()

    def nested(x: Any, counts: list[int]) -> Any:
        ends = _offsets(counts, x.device)
        made: Any = torch.nested.nested_tensor_from_jagged(
            _packed(x, counts), ends.long(), min_seqlen=min(counts), max_seqlen=max(counts)
        )
        return made.transpose(1, 2)

    q = nested(q, queries)
    # With one tensor of offsets for keys and values, torch knows that their rows agree.
    k = nested(k, keys)
    v = torch.nested.nested_tensor_from_jagged(
        _packed(v, keys), k.offsets(), min_seqlen=min(keys), max_seqlen=max(keys)
    ).transpose(1, 2)
    grouped = q.shape[1] != k.shape[1]
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)


def _masked(q: Any, k: Any, v: Any, lengths: Any, causal: bool, scale: float | None) -> Callable[[], Any]:
    rows, columns = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    mask = (columns < lengths[:, 1, None])[:, None, None, :].expand(-1, 1, len(rows), -1)
    if causal:
        mask = mask & (columns <= rows[:, None])
    mask = mask.contiguous()
    grouped = q.shape[1] != k.shape[1]
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)


def _work(
    name: str,
    q: Any,
    k: Any,
    v: Any,
    *others: Any,
    causal: bool = False,
    scale: float | None = None,
    padded: bool = False,
) -> Callable[[], Any]:
    """Return a call of the peer. others: lengths, if `padded`, and the output, which the call does not write."""
    if padded:
        made = {FLASH: _varlen, MASKED: _masked}.get(name, _nested)
        return made(q, k, v, others[0], causal, scale)
    grouped = q.shape[1] != k.shape[1]
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)


def _register() -> None:
    family = ops.families()["attention"]
    for name, kernel in _BACKENDS.items():
        packed = "" if name == MATH else "; with lengths on packed rows"
        idea = f"scaled_dot_product_attention, {kernel}{packed}"
        family.peer("torch", idea, name)(functools.partial(_work, name))
    masked = "scaled_dot_product_attention of padded arrays with a mask"
    family.peer("torch", masked, MASKED)(functools.partial(_work, MASKED))


_register()
