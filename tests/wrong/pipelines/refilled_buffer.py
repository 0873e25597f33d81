"""Wrong: refills the pinned buffer with the next chunk while the copy of the current one may still read it."""

import numpy as np

from cudakit import ops


def run(device, images, chunk):
    with device.stream() as stream:
        pinned, back = device.pinned((chunk, *images.shape[1:])), device.pinned((chunk, *images.shape[1:]))
        x, y = device.empty(pinned.shape, stream=stream), device.empty(pinned.shape, stream=stream)
        results = np.empty_like(images)
        for start in range(0, len(images), chunk):
            pinned[:] = images[start : start + chunk]
            x.copy_from(pinned, stream)
            ops.blur(x, out=y, stream=stream)
            y.copy_to(back, stream)
            if start:
                continue  # does not wait
            stream.synchronize()
            results[start : start + chunk] = back
        stream.synchronize()
    return results
