"""The product with one process per device, which the main process starts."""

import contextlib
import multiprocessing
import time
import traceback

import numpy as np
from parallel_product.problem import gather_memory, sampled

from cudakit import parallel
from cudakit.device import Device
from cudakit.errors import CudakitError
from cudakit.libs import nccl


def work(pipe, spec, rank, unique_id, problem):
    """The main function of a worker process: answers the requests of the main process."""
    try:
        with Device(spec) as device:
            stream, (a, b) = device.stream(), problem.operands()
            options = {"max_ctas": problem.ctas, "zero_ctas": problem.copy_engines}
            with nccl.Communicator(device, rank, problem.count, unique_id, **options) as communicator:
                scratch = gather_memory(problem, [communicator])
                first = device.array(a, stream=stream)
                second = device.array(np.ascontiguousarray(b[:, problem.columns(rank)]), stream=stream)
                c = device.full((problem.shape[0], problem.shape[1]), np.nan, a.dtype, stream=stream)
                start = device.zeros(1, stream=stream)
                del a, b
                pipe.send(("ready", None))
                while (request := pipe.recv())[0] != "end":
                    if request[0] == "samples":
                        pipe.send(("samples", sampled(c, problem.sample, stream)))
                        continue
                    times = []
                    for _ in range(request[1]):
                        communicator.all_reduce(stream, start, start)  # all processes begin together
                        communicator.wait(stream)
                        begin = time.perf_counter()
                        parallel.column_product(
                            [stream], [communicator], [first], [second], [c], columns=problem.widths,
                            blocks=problem.blocks, variant=problem.variant, exchange="all_gather",
                            scratch=scratch,
                        )  # fmt: skip
                        stream.synchronize()  # more precise than wait(); the main process ends one that hangs
                        times.append((time.perf_counter() - begin) * 1e3)
                    pipe.send(("times", times))
                scratch = first = second = c = start = None
    except BaseException:
        with contextlib.suppress(OSError):
            pipe.send(("failed", traceback.format_exc()))


class Processes:
    idea = "NCCL's all-gather, one process per device"

    @staticmethod
    def name_for(count):
        return f"{count} processes, NCCL"

    def __init__(self, problem, devices, a, b):
        self.problem = problem
        context = multiprocessing.get_context("spawn")
        unique_id = nccl.unique_id(devices[0])
        self.pipes, self.workers = [], []
        for rank, device in enumerate(devices):
            pipe, theirs = context.Pipe()
            arguments = (theirs, device.context.spec, rank, unique_id, problem)
            worker = context.Process(target=work, args=arguments, daemon=True)
            worker.start()
            theirs.close()
            self.pipes.append(pipe)
            self.workers.append(worker)
        self.answers()

    def ask(self, *request):
        for pipe in self.pipes:
            pipe.send(request)
        return self.answers()

    def answers(self):
        found = []
        for rank, pipe in enumerate(self.pipes):
            try:
                if not pipe.poll(120):
                    raise CudakitError(f"the process of rank {rank} has not answered in 120 s")
                kind, value = pipe.recv()
            except EOFError:
                kind, value = "failed", "it has ended"
            if kind == "failed":
                raise CudakitError(f"the process of rank {rank} failed: {value}")
            found.append(value)
        return found

    def times(self, count):
        """The milliseconds of each step: those of the slowest process."""
        return [max(each) for each in zip(*self.ask("run", count), strict=True)]

    def run(self):
        self.times(1)

    def poison(self):
        """The memory holds NaN before the first step."""

    def samples(self):
        return self.ask("samples")

    def close(self):
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(("end",))
        for worker in self.workers:
            worker.join(20)
            if worker.is_alive():
                worker.terminate()
