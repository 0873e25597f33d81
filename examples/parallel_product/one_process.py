"""The ways to compute the product in one process: one device, peer copies, NCCL."""

import itertools

import numpy as np
from parallel_product.problem import gather_memory, sampled

from cudakit import ops, parallel
from cudakit.libs import nccl


class OneDevice:
    idea = "the whole product"

    @staticmethod
    def name_for(_):
        return "1 device"

    def __init__(self, problem, devices, a, b):
        (self.device, *_), self.problem = devices, problem
        self.stream = self.device.stream()
        self.a, self.b = (self.device.array(x, stream=self.stream) for x in (a, b))
        self.c = self.device.empty((problem.shape[0], problem.shape[1]), a.dtype, self.stream)

    def run(self):
        ops.gemm(self.a, self.b, self.c, stream=self.stream)
        self.stream.synchronize()

    def poison(self):
        self.c.view(np.uint8).fill(255, self.stream)

    def samples(self):
        return [sampled(self.c, self.problem.sample, self.stream)]

    def close(self):
        self.stream.synchronize()


class Shards:
    """The devices of this process, each with A, its columns of B, and memory for all of C."""

    def __init__(self, problem, devices, a, b):
        self.problem, self.devices = problem, devices
        self.streams = [device.stream() for device in devices]
        places = [(device, stream) for device, stream in zip(devices, self.streams, strict=True)]
        m, n, _ = problem.shape
        self.a = [device.array(a, stream=stream) for device, stream in places]
        parts = [np.ascontiguousarray(b[:, problem.columns(i)]) for i in range(problem.count)]
        self.b = [d.array(part, stream=stream) for (d, stream), part in zip(places, parts, strict=True)]
        self.c = [device.empty((m, n), a.dtype, stream) for device, stream in places]
        self.finish()

    def run(self):
        self.step()
        self.finish()

    def finish(self):
        for stream in self.streams:
            stream.synchronize()

    def poison(self):
        for c, stream in zip(self.c, self.streams, strict=True):
            c.view(np.uint8).fill(255, stream)
        self.finish()

    def samples(self):
        pairs = zip(self.c, self.streams, strict=True)
        return [sampled(c, self.problem.sample, stream) for c, stream in pairs]

    def products(self):
        """The local products alone."""
        for rows in self.problem.cuts:
            self.multiply(rows)
        self.finish()

    def multiply(self, rows):
        for i, stream in enumerate(self.streams):
            columns = self.problem.columns(i)
            ops.gemm(self.a[i][rows], self.b[i], self.c[i][rows, columns], variant=self.problem.variant, stream=stream)

    def close(self):
        self.finish()


class PeerCopies(Shards):
    idea = "columns copied from device to device"

    @staticmethod
    def name_for(count):
        return f"{count} devices, peer copies"

    def __init__(self, problem, devices, a, b):
        super().__init__(problem, devices, a, b)
        self.takes = [device.stream(device.context.stream_priorities()[1]) for device in devices]

    def step(self):
        everyone = range(self.problem.count)
        for rows in self.problem.cuts:
            self.multiply(rows)
            for to, source in itertools.permutations(everyone, 2):
                self.takes[to].wait(self.streams[source])
                columns = self.problem.columns(source)
                self.c[to][rows, columns].copy_from(self.c[source][rows, columns], self.takes[to])
        for one, other in itertools.product(everyone, repeat=2):
            self.streams[one].wait(self.takes[other])  # the next product must not overwrite data that is being copied

    def exchange(self):
        """Peer copies of contiguous memory, as many bytes as a step's."""
        for to, source in itertools.permutations(range(self.problem.count), 2):
            whole, size = self.c[source].reshape(-1), self.problem.shape[0] * self.problem.widths[source]
            self.c[to].reshape(-1)[size * source :][:size].copy_from(whole[size * source :][:size], self.takes[to])
        for take in self.takes:
            take.synchronize()


class Ranks(Shards):
    """The shards with a communicator per device."""

    def __init__(self, problem, devices, a, b, **options):
        super().__init__(problem, devices, a, b)
        self.ranks = nccl.communicators(devices, **options)

    def product(self, **options):
        operands = self.streams, self.ranks, self.a, self.b, self.c
        parallel.column_product(*operands, columns=self.problem.widths, variant=self.problem.variant, **options)

    def close(self):
        self.finish()
        for rank in self.ranks:
            rank.close()


class Stores(Ranks):
    idea = "the products store on every device"

    @staticmethod
    def name_for(count):
        return f"{count} devices, stores"

    def step(self):
        self.product(exchange="stores")


class OneProcess(Ranks):
    idea = "NCCL's all-gather, one process for all devices"

    @staticmethod
    def name_for(count):
        return f"{count} devices, NCCL"

    def __init__(self, problem, devices, a, b):
        super().__init__(problem, devices, a, b, max_ctas=problem.ctas, zero_ctas=problem.copy_engines)
        self.scratch = gather_memory(problem, self.ranks)

    def step(self):
        self.product(exchange="all_gather", blocks=self.problem.blocks, scratch=self.scratch)

    def close(self):
        self.finish()
        self.scratch = None
        super().close()
