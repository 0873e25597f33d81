"""Wrong: the result is taken before its copy has arrived, and saved under the chunk that was just queued."""

import numpy as np

from cudakit import ops


def run(device, images, chunk):
    streams = [device.stream() for _ in range(2)]
    sets = []
    for stream in streams:
        pinned, back = device.pinned((chunk, *images.shape[1:])), device.pinned((chunk, *images.shape[1:]))
        back[:] = 0
        sets.append(
            (stream, pinned, back, device.empty(pinned.shape, stream=stream), device.empty(pinned.shape, stream=stream))
        )
    results = np.empty_like(images)
    for number, start in enumerate(range(0, len(images), chunk)):
        stream, pinned, back, x, y = sets[number % 2]
        stream.synchronize()  # the chunk before the last, of this stream: its result lies in `back` now...
        pinned[:] = images[start : start + chunk]
        x.copy_from(pinned, stream)
        ops.blur(x, out=y, stream=stream)
        results[start : start + chunk] = back  # ...and is kept under this chunk's name; the last ones are lost
        y.copy_to(back, stream)
    for stream in streams:
        stream.synchronize()
        stream.close()
    return results
