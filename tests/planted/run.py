"""Runs planted cases on a GPU under compute-sanitizer: `python -m planted.run wrong NAME...`, or `right NAME...`.

`wrong` prints errors and exits with status 0, because only the tool's verdict counts. `right` checks the results and
exits with status 1 if one is wrong. It ends at the first case that loses the device, which later ones cannot use.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Mapping

import cudakit

from . import CASES, Case, run_case


def main(cases: Mapping[str, Case] = CASES) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("half", choices=("wrong", "right"))
    parser.add_argument("names", nargs="+", metavar="CASE")
    parser.add_argument("--device", default="gpu")
    options = parser.parse_args()
    wrong = options.half == "wrong"
    status = 0
    for case in [cases[name] for name in options.names]:
        print(f"case {case.name} {options.half}", flush=True)
        try:
            if wrong:
                # The device is not closed: leaks are found at the end of the process.
                run_case(case, cudakit.Device(options.device), wrong)
            else:
                with cudakit.Device(options.device) as device:
                    run_case(case, device, wrong)
        except (cudakit.CudakitError, AssertionError) as error:
            traceback.print_exc()
            status = 0 if wrong else 1
            if isinstance(error, cudakit.DeviceFault):
                break
    return status


if __name__ == "__main__":
    sys.exit(main())
