"""CUTLASS's kernel for Hopper, compiled by NVRTC with its collective mainloop and epilogue, under the default checks.

Skipped unless CUTLASS's headers are installed (tests/cutlass_gemm/headers.py). Its host code cannot run without a
driver, so that one thread of the device computes the kernel's parameters, with tensor maps by cudakit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from cutlass_gemm.headers import HOW, installed, overlay
from ml_dtypes import bfloat16
from paths import TESTS

import cudakit
from cudakit.errors import DeviceFault

INCLUDE = installed()
pytestmark = pytest.mark.skipif(INCLUDE is None, reason=f"CUTLASS's headers are not installed: {HOW}")
DEPTH, EPILOGUE_COLUMNS = 64, 32
PARAMETERS = 4096  # bytes; at least the size of the kernel's


class Config(NamedTuple):
    """A kernel: its schedule, tile, blocks per cluster, and whether it adds C."""

    schedule: str = "Cooperative"
    tile: tuple[int, int] = (128, 128)
    cluster: tuple[int, int] = (1, 1)
    source: bool = False

    @property
    def defines(self) -> dict[str, Any]:
        tile = {"TILE_M": self.tile[0], "TILE_N": self.tile[1]}
        cluster = {"CLUSTER_M": self.cluster[0], "CLUSTER_N": self.cluster[1]}
        names = {
            "SCHEDULE": self.schedule,
            "EPILOGUE": self.schedule if self.schedule == "Cooperative" else "",
            "SOURCE": "bfloat16" if self.source else "void",
        }
        # the second: division of 128 bits, which the host's part needs
        return {"NDEBUG": None, "CUTLASS_UINT128_NATIVE": None, "STAGES": 2, **tile, **cluster, **names}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    assert INCLUDE is not None
    return [overlay(INCLUDE, tmp_path_factory.mktemp("cutlass")), INCLUDE]


def compiled(device: cudakit.Device, config: Config, folders: list[Any]) -> Any:
    return device.compile(
        TESTS / "cutlass_gemm" / "gemm.cu",
        include=folders,
        options=("-default-device", "--device-int128"),
        defines=config.defines,
    )


def multiply(
    device: cudakit.Device, module: Any, config: Config, shape: tuple[int, int, int], *, rows: int = 0
) -> None:
    """Run a kernel on random integers and compare with numpy. rows: of A's box, if not those of the kernel's tile."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-2, 3, size).astype(bfloat16) for size in ((m, k), (n, k), (m, n)))
    arrays = [device.array(host) for host in (a, b, c, np.zeros((m, n), bfloat16))]
    down = 128 if config.schedule == "Cooperative" else 64
    # a block loads its part of the tile that it shares with others
    boxes = [(rows or config.tile[0] // config.cluster[1], DEPTH), (config.tile[1] // config.cluster[0], DEPTH)]
    boxes += 2 * [(down, EPILOGUE_COLUMNS)]
    maps = [
        cudakit.TensorMap(
            array,
            box=(1, *box),
            dims=(1, *array.shape),
            swizzle="128B" if box[1] == DEPTH else "64B",
        )
        for array, box in zip(arrays, boxes, strict=True)
    ]
    parameters, sizes = device.zeros(PARAMETERS, np.uint8), device.zeros(6, np.int32)
    stream = device.default_stream
    module["prepare"].launch(stream, grid=1, block=1, args=(*maps, m, n, k, 2.0, 3.0, 4, parameters, sizes))
    size, shared, threads, *grid = sizes.numpy().tolist()
    assert size <= PARAMETERS
    module["gemm"].launch(
        stream,
        grid=tuple(grid),
        block=threads,
        shared=shared,
        cluster=(*config.cluster, 1),
        args=(parameters.numpy()[:size].tobytes(),),
    )
    want = 2 * (a.astype(np.float32) @ b.astype(np.float32).T)
    if config.source:
        want += 3 * c.astype(np.float32)
    np.testing.assert_array_equal(arrays[3].numpy(), want.astype(bfloat16))


COOPERATIVE = Config()
PINGPONG = Config("Pingpong", (64, 128))
MULTICAST = Config(cluster=(2, 1), source=True)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (COOPERATIVE, (384, 256, 192)),
        (PINGPONG, (200, 264, 136)),
        (MULTICAST, (300, 264, 200)),
        (Config("Pingpong", (64, 128), (1, 2)), (192, 512, 128)),
        (Config(cluster=(2, 2), source=True), (256, 256, 192)),
    ],
    ids=str,
)
def test_a_product_is_that_of_numpy(
    config: Config, shape: tuple[int, int, int], sim: cudakit.Device, folders: list[Any]
) -> None:
    multiply(sim, compiled(sim, config, folders), config, shape)


@pytest.mark.parametrize("config", [PINGPONG, MULTICAST], ids=str)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
def test_the_moments_at_which_copies_complete_do_not_matter(config: Config, seed: int, folders: list[Any]) -> None:
    with cudakit.Device("sim", fresh=True, order="random", seed=seed) as device:
        multiply(device, compiled(device, config, folders), config, (256, 256, 192))


def test_a_box_of_half_the_tile_is_reported_as_missing_bytes(sim: cudakit.Device, folders: list[Any]) -> None:
    module = compiled(sim, COOPERATIVE, folders)
    with pytest.raises(DeviceFault, match="bytes"):
        multiply(sim, module, COOPERATIVE, (128, 128, 128), rows=64)
