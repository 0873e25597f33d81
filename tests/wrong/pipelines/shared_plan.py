"""Wrong: one plan, which has one work area, runs on two streams at once."""

import numpy as np

from cudakit.libs import fft


def run(device, images, chunk):
    streams = [device.stream() for _ in range(2)]
    plan = fft.Plan(device, images.shape[1:], batch=chunk, stream=streams[0])
    results = np.empty(images.shape, np.complex64)
    pairs = []
    for number, start in enumerate(range(0, len(images), chunk)):
        stream = streams[number % 2]
        x = device.array(images[start : start + chunk].astype(np.complex64), stream=stream)
        pairs.append((start, stream, plan.forward(x, stream=stream)))
    for start, stream, y in pairs:
        results[start : start + chunk] = y.numpy(stream)
    return results
