"""cudakit.TensorMap: made over an array, its rules by axis, and as a kernel argument."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu

import cudakit
from cudakit import LaunchError, TensorMap
from cudakit.errors import Closed, CudakitError

OWN = "struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };\n"
SOURCE = r"""
__global__ void words(const __grid_constant__ CUtensorMap map, unsigned long long* out) {
    out[threadIdx.x] = map.opaque[threadIdx.x];
}
extern "C" __global__ void plain_words(const __grid_constant__ CUtensorMap map, unsigned long long* out) {
    out[threadIdx.x] = map.opaque[threadIdx.x];
}
__global__ void behind(char first, const __grid_constant__ CUtensorMap map, int second, unsigned long long* out) {
    out[threadIdx.x] = map.opaque[threadIdx.x] + (first == 3 && second == 5 ? 0 : 1);
}
struct Other { unsigned long long opaque[16]; };
__global__ void other(Other map, unsigned long long* out) { out[threadIdx.x] = map.opaque[threadIdx.x]; }
__global__ void in_memory(const CUtensorMap* map, unsigned long long* out) {
    out[threadIdx.x] = map->opaque[threadIdx.x];
}
__global__ void copied(CUtensorMap map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
"""
COPY = r"""
#include <cuda.h>

// Copies the box at (row, column) to the one at (to_row, to_column).
__global__ void box(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, int row,
                    int column, int to_row, int to_column, unsigned bytes) {
    __shared__ alignas(128) float tile[16 * 32];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned tile_at = __cvta_generic_to_shared(tile), at = __cvta_generic_to_shared(&barrier);
    asm volatile("mbarrier.init.shared.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(at) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 ::"r"(tile_at), "l"(&from), "r"(column), "r"(row), "r"(at) : "memory");
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(at) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(&to), "r"(to_column), "r"(to_row), "r"(tile_at) : "memory");
    asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
}
"""


@pytest.fixture
def hopper(device: cudakit.Device) -> cudakit.Device:
    if device.context.compute_capability < (9, 0):
        pytest.skip("tensor maps need sm_90")
    return device


@pytest.fixture(params=[OWN, "#include <cuda.h>\n"], ids=["own", "cuda.h"])
def module(hopper: cudakit.Device, request: Any) -> cudakit.Module:
    return hopper.compile(source=request.param + SOURCE, name="map.cu")


@pytest.fixture
def array(hopper: cudakit.Device) -> cudakit.DeviceArray:
    return hopper.zeros((64, 128), np.float32)


def launched(kernel: cudakit.Kernel, stream: cudakit.Stream, out: cudakit.DeviceArray, *args: Any) -> Any:
    out.fill(0, stream)
    kernel.launch(stream, grid=1, block=16, args=(*args, out))
    return out.numpy(stream)


# As an argument -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["words", "plain_words"])
def test_a_kernel_receives_the_bytes(module: cudakit.Module, array: cudakit.DeviceArray, name: str) -> None:
    device = cudakit.Device.of(array.context)
    kernel, stream = module[name], device.default_stream
    out = device.zeros(16, np.uint64)
    first, second = TensorMap(array, box=(8, 32)), TensorMap(array, box=(4, 16), swizzle="64B")
    assert (first.opaque != second.opaque).any()
    for _ in range(3):
        assert (launched(kernel, stream, out, first) == first.opaque).all()
        assert (launched(kernel, stream, out, second) == second.opaque).all()
    prepared = kernel.prepare(grid=1, block=16, args=(first, out))
    out.fill(0)
    prepared.launch(stream)
    assert (out.numpy() == first.opaque).all()
    assert (launched(kernel, stream, out, first.data) == first.opaque).all()


def test_its_place_among_other_parameters(module: cudakit.Module, array: cudakit.DeviceArray) -> None:
    kernel = module["behind"]
    if cudakit.Device.of(array.context).kind == "sim":
        # a GPU counts offsets from the start of its parameters, which is not a multiple of 64
        assert kernel.parameters[1].offset % 64 == 0
    assert kernel.signature == "behind(char, CUtensorMap, int, unsigned long long*)"
    device = cudakit.Device.of(array.context)
    made = TensorMap(array, box=(8, 32))
    out = device.zeros(16, np.uint64)
    kernel.launch(device.default_stream, grid=1, block=16, args=(3, made, 5, out))
    assert (out.numpy() == made.opaque).all()


def test_a_map_of_the_bindings_is_taken(module: cudakit.Module, array: cudakit.DeviceArray) -> None:
    device = cudakit.Device.of(array.context)
    made, out = TensorMap(array, box=(8, 32)), device.zeros(16, np.uint64)
    same = cu.CUtensorMap()
    same.opaque = [cu.cuuint64_t(int(word)) for word in made.opaque]
    assert (launched(module["words"], device.default_stream, out, same) == made.opaque).all()


def test_maps_in_memory_are_numbers(module: cudakit.Module, array: cudakit.DeviceArray) -> None:
    device = cudakit.Device.of(array.context)
    made, out = TensorMap(array, box=(8, 32)), device.zeros(16, np.uint64)
    there = device.array(made.opaque)
    assert (launched(module["in_memory"], device.default_stream, out, there) == made.opaque).all()


def test_what_is_refused(module: cudakit.Module, array: cudakit.DeviceArray) -> None:
    device = cudakit.Device.of(array.context)
    made, out = TensorMap(array, box=(8, 32)), device.zeros(16, np.uint64)
    take = "pass cudakit.TensorMap"
    grid_constant = r"goes to a parameter `const __grid_constant__ CUtensorMap`"
    for name, value, said in (
        ("words", array, rf"parameter 0 \(`map`\) is CUtensorMap, got a DeviceArray of float32: {take}"),
        ("words", 7, take),
        ("words", None, take),
        ("words", made.opaque, take),
        ("words", b"short", "got 5 bytes, the parameter needs 128"),
        ("other", made, rf"parameter 0 \(`map`\) is Other, got a TensorMap: a tensor map {grid_constant}"),
        ("in_memory", made, r"const CUtensorMap\*, got a TensorMap: declare the parameter `const __grid_constant__"),
    ):
        with pytest.raises(LaunchError, match=said):
            module[name].launch(device.default_stream, grid=1, block=16, args=(value, out))
    with pytest.raises(LaunchError, match=r"unsigned long long\*, got a TensorMap"):
        module["words"].launch(device.default_stream, grid=1, block=16, args=(made, made))


def test_a_parameter_without_grid_constant_is_refused(module: cudakit.Module, array: cudakit.DeviceArray) -> None:
    device = cudakit.Device.of(array.context)
    said = "copied: parameter 0 .`map`. .* copies to local memory.*declare it `const __grid_constant__ CUtensorMap`"
    with pytest.raises(LaunchError, match=said):
        module["copied"].launch(device.default_stream, grid=1, block=1, args=(TensorMap(array, box=(8, 32)),))


def test_the_array_must_be_open_and_on_the_device(module: cudakit.Module, array: cudakit.DeviceArray) -> None:
    device = cudakit.Device.of(array.context)
    made, out = TensorMap(array, box=(8, 32)), device.zeros(16, np.uint64)
    launched(module["words"], device.default_stream, out, made)
    prepared = module["words"].prepare(grid=1, block=16, args=(made, out))
    with cudakit.Device("sim", fresh=True) as elsewhere:
        there = TensorMap(elsewhere.zeros((64, 128), np.float32), box=(8, 32))
        with pytest.raises(LaunchError, match=r"got a TensorMap: it is on sim:sm_90a"):
            launched(module["words"], device.default_stream, out, there)
    array.close()
    assert repr(made).endswith("closed)")
    with pytest.raises(LaunchError, match="got a TensorMap: it was closed"):
        launched(module["words"], device.default_stream, out, made)
    with pytest.raises(LaunchError, match="an array of this prepared launch was closed"):
        prepared.launch(device.default_stream)
    with pytest.raises(Closed, match="make the map before"):
        TensorMap(array, box=(8, 32))


def test_a_map_keeps_its_array_and_a_plan_does_not(module: cudakit.Module, hopper: cudakit.Device) -> None:
    out = hopper.zeros(16, np.uint64)
    array = hopper.zeros((64, 128), np.float32)
    made, alive = TensorMap(array, box=(8, 32)), weakref.ref(array)
    del array
    launched(module["words"], hopper.default_stream, out, made)
    gc.collect()
    assert alive() is not None
    del made
    gc.collect()
    assert alive() is None


def test_a_launch_on_another_stream_delays_the_free(module: cudakit.Module, hopper: cudakit.Device) -> None:
    out = hopper.zeros(16, np.uint64)
    arrays = [hopper.zeros((64, 128), np.float32) for _ in range(2)]  # the second launch is that of a plan
    with hopper.stream() as other:
        other.wait(hopper.default_stream)
        for array in arrays:
            module["words"].launch(other, grid=1, block=16, args=(TensorMap(array, box=(8, 32)), out))
            assert other in array.allocation.uses.others
        other.synchronize()


def test_a_graph_keeps_the_bytes_and_the_array(module: cudakit.Module, hopper: cudakit.Device) -> None:
    stream, out = hopper.default_stream, hopper.zeros(16, np.uint64)
    array = hopper.zeros((64, 128), np.float32)
    made = TensorMap(array, box=(8, 32))
    words, alive = made.opaque.copy(), weakref.ref(array.allocation)
    with hopper.capture(stream) as graph:
        module["words"].launch(stream, grid=1, block=16, args=(made, out))
    ready = graph.instantiate()
    del made, array, graph
    gc.collect()
    assert alive() is not None
    ready.launch(stream)
    assert (out.numpy() == words).all()


def test_a_captured_function_distinguishes_maps(module: cudakit.Module, array: cudakit.DeviceArray) -> None:
    device = cudakit.Device.of(array.context)
    out = device.zeros(16, np.uint64)
    step = cudakit.graph.captured(
        lambda stream, made, out: module["words"].launch(stream, grid=1, block=16, args=(made, out))
    )
    maps = [TensorMap(array, box=(8, 32)), TensorMap(array, box=(8, 16)), TensorMap(array, box=(8, 32))]
    for made in (*maps, *maps):
        step(device.default_stream, made, out)
        assert (out.numpy() == made.opaque).all()
    assert len(step) == 2


@pytest.mark.parametrize(
    ("at", "to"), [((8, 32), (0, 0)), ((-3, 100), (40, 64)), ((60, -4), (56, 0)), ((200, 0), (0, 96))]
)
def test_a_box_is_copied_with_zeros_outside(hopper: cudakit.Device, at: tuple[int, int], to: tuple[int, int]) -> None:
    host = np.random.default_rng(3).standard_normal((64, 128)).astype(np.float32)
    source, target = hopper.array(host), hopper.full((62, 112), -1, np.float32)
    maps = TensorMap(source, box=(16, 32)), TensorMap(target, box=(16, 32))
    assert maps[0].box_bytes == 16 * 32 * 4
    kernel = hopper.compile(source=COPY, name="box.cu")["box"]
    kernel.launch(hopper.default_stream, grid=1, block=1, args=(*maps, *at, *to, maps[0].box_bytes))
    padded = np.zeros((64 + 400, 128 + 400), np.float32)
    padded[200:264, 200:328] = host
    expected = np.full((62 + 16, 112 + 32), -1, np.float32)
    expected[to[0] : to[0] + 16, to[1] : to[1] + 32] = padded[200 + at[0] :, 200 + at[1] :][:16, :32]
    np.testing.assert_array_equal(target.numpy(), expected[:62, :112])


def test_the_sizes_of_a_map_are_not_taken_for_addresses() -> None:
    """Sizes whose words equal the address of freed memory: the later launch uses other memory."""
    with cudakit.Device("sim", fresh=True) as fresh:
        freed, kept = fresh.zeros((64, 128), np.float32), fresh.zeros((64, 128), np.float32)
        freed_at, out = freed.pointer, fresh.zeros(16, np.uint64)
        assert (freed_at >> 32, freed_at & 0xFFFF_FFFF) == (16, 0)
        freed.close()
        made = TensorMap(kept, box=(16, 4))  # 4 and 16 are adjacent in the map
        fresh.compile(source=OWN + SOURCE, name="map.cu")["words"].launch(
            fresh.default_stream, grid=1, block=16, args=(made, out)
        )
        assert (out.numpy() == made.opaque).all()
        assert all(word >> 32 != 16 or word == kept.pointer for word in made.opaque.tolist())


# Rules ----------------------------------------------------------------------------------------------------------------


def test_axes_are_counted_as_the_arrays(hopper: cudakit.Device) -> None:
    flat = hopper.zeros((4, 6, 8), np.float32)
    for changed, said in (
        ({"box": (1, 257, 4)}, "axis 1: the box must be 1 to 256 elements, got 257"),
        ({"box": (0, 1, 4)}, "axis 0: the box must be 1 to 256 elements, got 0"),
        ({"box": (1, 1, 3)}, "axis 2: the box is 3 elements of 4 bytes, 12 bytes: they must be a multiple of 16"),
        ({"swizzle": "32B", "box": (1, 1, 12)}, "axis 2: .* 48 bytes: a row must not exceed the span of a 32B swizzle"),
        ({"element_strides": (9, 1, 1)}, "axis 0: the element stride must be 1 to 8, got 9"),
        ({"box": (1, 4)}, r"box must have one number per axis of the tensor, 3, got \(1, 4\)"),
        ({"box": 4}, "box must have one number per axis of the tensor, 3, got 4"),
        ({"swizzle": "16B"}, "swizzle must be 'none', '32B', '64B', '128B', got '16B'"),
        ({"fill": 0}, "fill must be 'zeros', 'nan', got 0"),
        ({"element_strides": (1, 1, 0)}, "axis 2: the element stride must be 1 to 8, got 0"),
        ({"box": (256, 256, 4)}, "the box has 4 x 256 x 256 elements of 4 bytes, 1048576 bytes: they must not exceed"),
        ({"strides": (192, 32, 4)}, "strides were passed without dims"),
        ({"dims": (4, 7, 8)}, r"dims \(4, 7, 8\) .* are bytes 0 to 896 of the array, which has memory .* to 768"),
    ):
        with pytest.raises(ValueError, match=said):
            TensorMap(flat, **{"box": (2, 3, 4), **changed})
    with pytest.raises(TypeError, match=r"box must be an int or a tuple of ints, got \(1, 1.5, 4\)"):
        TensorMap(flat, box=(1, 1.5, 4))  # type: ignore[arg-type]


def test_layouts_that_the_copy_engine_cannot_describe(hopper: cudakit.Device) -> None:
    wide = hopper.zeros((64, 128), np.float32)
    for array, said in (
        (wide.T, "axis 1: its elements must be adjacent, 4 bytes apart, but its stride is 512 bytes"),
        (wide[:, ::2], "axis 1: its elements must be adjacent, 4 bytes apart, but its stride is 8 bytes"),
        (wide[::-1], "axis 0: the stride in bytes must be a multiple of 16 .*got -512; pass a view with positive"),
        (wide[:, 1:], "the address of the array must be a multiple of 16"),
        (hopper.zeros((8, 7), np.float32), "axis 0: the stride in bytes .*, got 28; pad the rows"),
        (hopper.zeros((0, 8), np.float32), r"axis 0: the extent must be 1 to 2\^32 elements, got 0"),
    ):
        with pytest.raises(ValueError, match=said):
            TensorMap(array, box=(2, 4))
    with pytest.raises(ValueError, match="the number of axes must be 1 to 5, got 6"):
        TensorMap(hopper.zeros((1, 1, 1, 1, 1, 4), np.float32), box=(1, 1, 1, 1, 1, 4))
    with pytest.raises(ValueError, match="got an array without axes"):
        TensorMap(hopper.zeros((), np.float32), box=4)
    with pytest.raises(TypeError, match="made over a DeviceArray, got ndarray"):
        TensorMap(np.zeros(4), box=4)  # type: ignore[arg-type]


def test_views_and_other_shapes_of_the_same_memory(hopper: cudakit.Device) -> None:
    wide = hopper.zeros((64, 128), "bfloat16")
    assert TensorMap(wide[::2, 64:], box=(4, 64)).box == (4, 64)
    assert TensorMap(wide[3:4], box=(1, 64)).box_bytes == 128
    assert TensorMap(hopper.zeros((1, 5), np.float32), box=(1, 4)).box_bytes == 16  # the row's stride is not used
    tiles = TensorMap(wide, box=(2, 32, 64), dims=(2, 64, 64), strides=(128, 256, 2), swizzle="128B")
    assert tiles.box_bytes == 2 * 32 * 64 * 2
    assert TensorMap(wide, box=64, dims=64 * 128).box == (64,)  # no strides: the driver needs an array even so
    sparse = TensorMap(hopper.zeros((64, 128), np.float32), box=(9, 32), element_strides=(4, 2))
    assert sparse.box_bytes == 3 * 32 * 4  # along the last axis the hardware has no stride


def test_an_element_of_an_interleaved_layout_is_a_slice(hopper: cudakit.Device) -> None:
    images = hopper.zeros((2, 4, 6, 32, 8), np.float16)
    tile = TensorMap(images, box=(2, 1, 3, 16), interleave="16B")
    assert tile.box_bytes == 2 * 3 * 16 * 16
    assert TensorMap(images, box=(2, 3, 3, 16), interleave="16B").box_bytes == tile.box_bytes  # one slice is taken
    assert (
        TensorMap(images, box=(2, 1, 3, 16), interleave="16B", element_strides=(1, 1, 1, 2)).box_bytes == 2 * 3 * 8 * 16
    )
    assert TensorMap(images, box=(2, 1, 3, 16), interleave="16B", dims=images.shape[:-1]).data == tile.data
    with pytest.raises(
        ValueError, match=r"last axis must be one slice of 32 adjacent bytes, got shape \(2, 4, 6, 32, 8\)"
    ):
        TensorMap(images, box=(2, 1, 3, 16), interleave="32B")
    with pytest.raises(ValueError, match="pass smaller dims or strides"):
        TensorMap(images, box=(2, 1, 3, 16), interleave="32B", dims=images.shape[:-1])


def test_types(hopper: cudakit.Device) -> None:
    for dtype, size in (("int8", 1), ("float8_e4m3fn", 1), ("bool", 1), ("int16", 2), ("bfloat16", 2), ("float64", 8)):
        assert TensorMap(hopper.zeros((4, 64), dtype), box=(1, 16)).box_bytes == 16 * size
    single = hopper.zeros((4, 64), np.float32)
    kinds = ("float32", "tf32", "tf32_ftz", "float32_ftz", "uint32")
    assert len({TensorMap(single, box=(1, 16), data_type=kind).data for kind in kinds}) == len(kinds)
    pairs = hopper.zeros((4, 64), np.complex64)
    assert "data_type='uint64'" in repr(TensorMap(pairs, box=(1, 16), data_type="uint64"))
    with pytest.raises(TypeError, match="no type for complex64; pass data_type='uint64' to copy its bits"):
        TensorMap(pairs, box=(1, 16))
    with pytest.raises(TypeError, match="no type for complex128, of 16 bytes"):
        TensorMap(hopper.zeros((4, 64), np.complex128), box=(1, 16))
    with pytest.raises(TypeError, match="data_type 'float16' has 2 bytes, and elements of float32 have 4"):
        TensorMap(single, box=(1, 16), data_type="float16")
    with pytest.raises(ValueError, match=r"data_type must be 'uint8', .*got 'float'"):
        TensorMap(single, box=(1, 16), data_type="float")
    with pytest.raises(ValueError, match="fill must be zeros for s32: NaN is for types of floating point"):
        TensorMap(hopper.zeros((4, 64), np.int32), box=(1, 16), fill="nan")


def test_repr(hopper: cudakit.Device) -> None:
    single = hopper.zeros((4, 64), np.float32)
    made = TensorMap(single, box=(2, 16), swizzle="64B", fill="nan", element_strides=(2, 1), data_type="tf32")
    said = "float32 (4, 64), box=(2, 16), data_type='tf32', swizzle='64B', fill='nan', element_strides=(2, 1)"
    assert repr(made) == f"TensorMap({said}, device={hopper.context.spec!r})"


def test_older_devices_have_none() -> None:
    with (
        cudakit.Device("sim:sm_89", fresh=True) as old,
        pytest.raises(CudakitError, match="sim:sm_89 has no tensor maps"),
    ):
        TensorMap(old.zeros((4, 64), np.float32), box=(2, 16))
