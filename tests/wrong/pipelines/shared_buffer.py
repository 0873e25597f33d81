"""Wrong: two streams use one device buffer without ordering."""

import numpy as np

from cudakit import ops


def run(device, images, chunk):
    streams = [device.stream() for _ in range(2)]
    y = device.empty((chunk, *images.shape[1:]))
    device.synchronize()
    results = np.empty_like(images)
    backs = []
    for number, start in enumerate(range(0, len(images), chunk)):
        stream = streams[number % 2]
        x = device.array(images[start : start + chunk], stream=stream)
        ops.blur(x, out=y, stream=stream)
        back = device.pinned(y.shape)
        y.copy_to(back, stream)
        backs.append((start, back))
    for stream in streams:
        stream.synchronize()
    for start, back in backs:
        results[start : start + chunk] = back
    return results
