"""Wrong: reads the result before its copy has run; the copy is only queued."""

import numpy as np

from cudakit import ops


def run(device, images, chunk):
    with device.stream() as stream:
        back = device.pinned((chunk, *images.shape[1:]))
        results = np.empty_like(images)
        y = device.empty(back.shape, stream=stream)
        for start in range(0, len(images), chunk):
            x = device.array(images[start : start + chunk], stream=stream)
            ops.blur(x, out=y, stream=stream)
            y.copy_to(back, stream)
            results[start : start + chunk] = back
            stream.synchronize()
    return results
