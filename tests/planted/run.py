"""Runs planted cases on a GPU, for compute-sanitizer to watch: `python -m planted.run NAME wrong`, or `all right`.

`wrong` ends as it ends: errors are printed and status is 0, since the tool's verdict is what is asked for. `right`
checks the results; status is 1 where one is not right.
"""

from __future__ import annotations

import argparse
import sys
import traceback

import cudakit

from . import CASES, run_case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of a case, or all")
    parser.add_argument("half", choices=("wrong", "right"))
    parser.add_argument("--device", default="gpu")
    options = parser.parse_args()
    wrong = options.half == "wrong"
    status = 0
    for case in CASES.values() if options.name == "all" else [CASES[options.name]]:
        print(f"case {case.name} {options.half}", flush=True)
        try:
            if wrong:
                # To the end of the process: a leak is seen there.
                run_case(case, cudakit.Device(options.device), wrong)
            else:
                with cudakit.Device(options.device) as device:
                    run_case(case, device, wrong)
        except (cudakit.CudakitError, AssertionError):
            traceback.print_exc()
            status = 0 if wrong else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
