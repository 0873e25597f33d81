"""Fit the model of times in cudakit/families/gemm_hopper.py, which chooses the tile of a 16-bit product on Hopper.

`measure` times tiles on drawn shapes on a GPU with torch, and writes the samples. `fit` reads them, and prints the
constants of each kind of tile and how much slower the model's choice is than the fastest measured tile. The shapes are
drawn with another seed than those of published tables.

    python examples/half_products/fit_times.py measure samples.json --shapes 60
    python examples/half_products/fit_times.py fit profiles/h200/gemm_hopper_tiles.json
"""

import argparse
import concurrent.futures
import datetime
import json
import math
import sys
from dataclasses import asdict

import numpy as np

import cudakit
from cudakit.compile import cache, compiler
from cudakit.families import gemm_hopper as hopper
from cudakit.families.gemm_half import FAMILY
from cudakit.families.gemm_problem import GemmProblem, Operand
from cudakit.family import IN, OUT
from cudakit.measure.timing import GpuTimer, rotations

SEED = 7  # of the shapes
LARGEST = 3e11  # multiply-adds of the largest shape
CANDIDATES = 14  # of a shape
NARROW = 64  # products with at most so many rows or columns are bound by memory


def drawn(count, multiple, least, rng, most=(16384, 16384, 16384)):
    """Return `count` shapes m, n, k, each log-uniform over `least` to `most`, rounded down to multiples."""
    shapes = []
    while len(shapes) < count:
        shape = np.exp(rng.uniform(np.log(least), np.log(most))).round().astype(int)
        shape = np.maximum(1, shape // multiple) * multiple  # one number, or one per extent
        if np.prod(shape.astype(float)) <= LARGEST:
            shapes.append(tuple(shape.tolist()))
    return shapes


def candidates(problem, rng):
    """Return (turned, tile, side, layout) of at most CANDIDATES tiles: those whose modelled time is the shortest, and
    some others that take at most twice as long. Narrow products have twice as many, which the product fills by half or
    more, if there are any. No two have the same kernel and grid."""
    kernels = {}
    for turned, side, layout in hopper.sides(problem):
        for tile in (*hopper.tiles_of(side, layout), *hopper.splits_of(side)):
            if tile.fits(side, layout):
                kernel = tuple((launch.entry, launch.grid) for launch in launches_of(tile, side, layout, 0))
                kernels.setdefault((turned, kernel), (hopper.us(tile, side, layout), turned, tile, side, layout))
    found, count = list(kernels.values()), CANDIDATES
    if min(problem.m, problem.n) <= NARROW:
        filled = [each for each in found if padding(*each[2:4]) <= 2]
        found, count = filled or found, 2 * CANDIDATES
    found.sort(key=lambda each: each[0])
    fast = [each[1:] for each in found if each[0] <= 2 * found[0][0]]
    first, rest = fast[: count // 2], fast[count // 2 :]
    others = rng.permutation(len(rest))[: count - len(first)]
    return [*first, *(rest[index] for index in others)]


def padding(tile, side):
    """Return the outputs of a tile divided by those of the product in it."""
    return max(1, tile.bm / side.m) * max(1, tile.bn / side.n)


def launches_of(tile, side, layout, used):
    """Return the launches of a tile; used: bytes of scratch memory that packed operands use."""
    return tile.launch(side, layout, used) if isinstance(tile, hopper.Split) else (tile.launch(side, layout),)


def measure(args):
    import torch

    rng = np.random.default_rng(args.seed)
    shapes = drawn(args.whole, 64, [1024] * 3, rng) + drawn(args.shapes, 8, [16] * 3, rng)
    shapes += drawn(args.unaligned, 1, [16] * 3, rng) + drawn(args.long, 8, [16, 16, 4096], rng, [512, 512, 131072])
    shapes += drawn(args.short, 1, [16] * 3, rng, [16384, 16384, 128])
    for multiple in (8, 64):  # of columns and k
        shapes += drawn(args.narrow // 2, [8, multiple, multiple], [8, 1024, 1024], rng, [NARROW, 16384, 16384])
    rng.shuffle(shapes)
    device = cudakit.Device(0)
    stream = device.stream()
    external = torch.cuda.ExternalStream(int(stream.handle))
    timer = GpuTimer(device, stream, budget_ms=args.budget_ms)
    l2 = int(device.attribute("L2_CACHE_SIZE"))
    variants = {hopper.TILES: FAMILY["tiles"], hopper.SPLIT_K: FAMILY["split_k"]}
    samples = []
    for shape in map(tuple, shapes):
        m, n, k = shape
        with torch.cuda.stream(external):
            copies = rotations(2 * (m * k + k * n + m * n), l2, most=24)
            sets = []
            for _ in range(copies):
                a, b = (torch.randn(size, device="cuda").bfloat16() for size in ((m, k), (k, n)))
                sets.append((a, b, torch.empty((m, n), device="cuda", dtype=torch.bfloat16)))
            cublas = timer.time([lambda s=s: torch.mm(s[0], s[1], out=s[2]) for s in sets]).median * 1e3
            exact = sets[0][2].float().clone()
        arrays = [tuple(device.wrap(x, stream=stream) for x in each) for each in sets]
        problem = FAMILY.problem_of(arrays[0][:2], arrays[0][2])
        chosen = [(False, *each) for each in candidates(problem, rng)]
        packing = hopper.packing_for(problem)
        used = 2 * packing.end
        if packing.packed:
            chosen += [(True, *each) for each in candidates(packing.applied(problem), rng)]
        made = [launches_of(*each[2:], used) for each in chosen]
        most = max(used, *(launch.scratch for launches in made for launch in launches))
        scratch = device.empty(most, np.uint8, stream=stream) if most else None
        packing_us = 0.0
        if packing.packed:
            (pack,) = hopper.packs(packing, problem)
            kernel = FAMILY.kernel(device, FAMILY["packed_tiles"], pack)
            run = kernel.prepare(**FAMILY.keywords(pack, kernel, problem, arrays[0][:2], arrays[0][2], scratch)).launch
            packing_us = timer.time([lambda run=run: run(stream)]).median * 1e3
            samples.append({"packed_bytes": used, "us": packing_us, "shape": shape})
        wanted = {(launch.source, launch.entry): launch for launches in made for launch in launches}
        with concurrent.futures.ThreadPoolExecutor(12) as pool:  # compile
            list(
                pool.map(
                    lambda one: cache.compiled(
                        FAMILY.request(device, variants[one.source], one), compiler.compile_in_threads
                    ),
                    wanted.values(),
                )
            )
        for (packed, turned, tile, _, _), launches in zip(chosen, made, strict=True):
            runs = []
            for a, b, out in arrays:
                kernels = [
                    FAMILY.kernel(device, variants[each.source], each).prepare(
                        **FAMILY.keywords(
                            each, FAMILY.kernel(device, variants[each.source], each), problem, (a, b), out, scratch
                        )
                    )
                    for each in launches
                ]
                runs.append(lambda kernels=kernels: [kernel.launch(stream) for kernel in kernels])
            with torch.cuda.stream(external):
                sets[0][2].fill_(math.nan)
                runs[0]()
                stream.synchronize()
                off = (sets[0][2].float() - exact).abs().max().item()
            largest = exact.abs().max().item()
            if not off <= 0.02 * largest:
                print(f"WRONG {shape} {tile} turned {turned}: off by {off:.3g} of {largest:.3g}", flush=True)
                continue
            us = timer.time(runs).median * 1e3
            samples.append(
                {
                    "shape": shape, "packed": packed, "turned": turned, "us": us, "cublas_us": cublas,
                    "tile": [type(tile).__name__, asdict(tile)],
                }
            )  # fmt: skip
        mine = [  # times with the packing
            (each["us"] + packing_us * each["packed"], each)
            for each in samples
            if each["shape"] == shape and "tile" in each
        ]
        if mine:
            us, best = min(mine, key=lambda row: row[0])
            first = [type(chosen[0][2]).__name__, asdict(chosen[0][2])]
            modelled = next((each_us for each_us, each in mine if each["tile"] == first), us)
            name, fields = best["tile"]
            words = " ".join(str(value) for value in fields.values())
            print(
                f"{shape} cuBLAS {cublas:.1f} us, best {us:.1f} ({cublas / us:.2f}), modelled {modelled:.1f}: {name} "
                f"{words}{' turned' if best['turned'] else ''}",
                flush=True,
            )
        with open(args.samples, "w") as file:
            json.dump({"device": device.name, "date": f"{datetime.date.today()}", "samples": samples}, file)
        del sets, arrays, runs
    return 0


def problem_like(shape):
    """Return the problem of contiguous bfloat16 matrices on an H200."""
    m, n, k = shape
    slots = IN[0], IN[1], OUT
    a, b, d = (Operand(cols, 1, 0, 16, slot) for cols, slot in zip((k, n, n), slots, strict=True))
    return GemmProblem(m, n, k, 1, a, b, d, d, 1.0, 0.0, "bfloat16", "bfloat16", 132, 232448)


def not_negative(terms, times, weights):
    """Return the coefficients of a weighted least-squares fit of relative errors, none of them negative."""
    left = list(range(terms.shape[1]))
    weighted = terms * (weights / times)[:, None]
    while True:
        found, *_ = np.linalg.lstsq(weighted[:, left], weights, rcond=None)
        if (found >= 0).all():
            result = np.zeros(terms.shape[1])
            result[left] = found
            return result
        del left[int(np.argmin(found))]


def fit(args):
    with open(args.samples) as file:
        samples = json.load(file)["samples"]
    groups = {}
    packs = np.array([(1, 2 * each["packed_bytes"], each["us"]) for each in samples if "packed_bytes" in each])
    if len(packs):
        start, per_byte = not_negative(packs[:, :2], packs[:, 2], np.ones(len(packs)))
        print(f"PACK_US, PACK_BYTES_PER_US = {start:.3g}, {1 / per_byte:.3g}")
    packing_us = {tuple(each["shape"]): each["us"] for each in samples if "packed_bytes" in each}
    samples = [each for each in samples if "tile" in each]
    for each in samples:
        each["whole_us"] = each["us"] + (packing_us[tuple(each["shape"])] if each["packed"] else 0)
    fastest = {}
    for each in samples:
        shape = tuple(each["shape"])
        fastest[shape] = min(fastest.get(shape, math.inf), each["whole_us"])
    for each in samples:
        name, fields = each["tile"]
        tile = getattr(hopper, name)(**fields)
        problem = problem_like(each["shape"])
        packing = hopper.packing_for(problem)
        packed_us = hopper.packing_us(packing) if each["packed"] else 0
        if each["packed"]:
            problem = packing.applied(problem)
        side = problem.turned if each["turned"] else problem
        layout = hopper.layout_of(side)
        chosen_from = hopper.splits_of(side) if tile.kind == "split" else hopper.tiles_of(side, layout)
        if tile not in chosen_from:
            continue
        groups.setdefault(tile.kind, []).append((tile.terms(side, layout), each["us"], packed_us, each))
    modelled = {}
    for kind, rows in groups.items():
        terms, times = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        # tiles that are nearly the fastest matter most
        weights = np.array([(fastest[tuple(row[-1]["shape"])] / row[-1]["whole_us"]) ** 2 for row in rows])
        found = not_negative(terms, times, weights)
        print(f'    "{kind}": ({", ".join(f"{value:.4g}" for value in found)}),')
        for row in rows:
            estimate = float(np.dot(found, row[0])) + row[2]
            sample = row[-1]
            modelled.setdefault(tuple(sample["shape"]), []).append((estimate, sample["whole_us"], sample["cublas_us"]))
        errors = np.abs(terms @ found / times - 1)
        print(f"# {kind}: {len(times)} samples, error median {np.median(errors):.3f}, largest {errors.max():.2f}")
    lost = {shape: min(rows)[1] / min(row[1] for row in rows) for shape, rows in modelled.items()}
    ratios = {shape: min(rows)[2] / min(rows)[1] for shape, rows in modelled.items()}
    slowest = sorted(lost.items(), key=lambda each: -each[1])[:8]
    print(f"# choice over fastest: mean {np.mean(list(lost.values())):.3f}, worst {slowest}")
    worst = sorted(ratios.items(), key=lambda each: each[1])[:8]
    print(f"# of cuBLAS: geometric mean {np.exp(np.mean(np.log(list(ratios.values())))):.3f}, worst {worst}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure")
    one.add_argument("samples")
    one.add_argument("--whole", type=int, default=30, help="shapes of multiples of 64, from 1024 on")
    one.add_argument("--shapes", type=int, default=60, help="shapes of multiples of 8")
    one.add_argument("--unaligned", type=int, default=40, help="other shapes")
    one.add_argument("--long", type=int, default=20, help="shapes of few outputs and much k")
    one.add_argument("--short", type=int, default=25, help="other shapes of little k")
    one.add_argument("--narrow", type=int, default=20, help="shapes of few rows, many columns and much k")
    one.add_argument("--seed", type=int, default=SEED, help=f"of the shapes (default: {SEED})")
    one.add_argument("--budget-ms", type=float, default=4.0)
    one.set_defaults(run=measure)
    two = commands.add_parser("fit")
    two.add_argument("samples")
    two.set_defaults(run=fit)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
