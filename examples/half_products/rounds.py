"""Device times of several calls, measured in turns with equal rests, and the GPU's clock and power meanwhile."""

import contextlib
import itertools
import subprocess
import threading
import time
from dataclasses import dataclass, field

from cudakit.measure.timing import Spread

# Several products are timed as one launch, because the GPU waits some microseconds for the host's first call: four, or
# two of products of at least LONG_FLOPS.
LONG_FLOPS, TOGETHER, LONG_TOGETHER = 2e12, 4, 2
SAMPLE_S = 0.005  # between two readings of the clock


@dataclass
class Measured:
    """The medians of the rounds, in milliseconds, and the readings of all rounds."""

    rounds: list = field(default_factory=list)
    readings: list = field(default_factory=list)

    @property
    def spread(self):
        return Spread.of(self.rounds)

    def reading(self, place):
        """Return the median of a reading, 0: SM clock in MHz, 1: watts; None if it was not read."""
        found = [reading[place] for reading in self.readings if reading[place] is not None]
        return Spread.of(found).median if found else None


def in_turns(timer, calls, flops, rounds, rest_s, clocks):
    """Time `calls`, a mapping of names to lists of calls that do the same work on different memory.

    A round times each name once, after a rest; every second round is in the reverse order. Returns one Measured per
    name.
    """
    together = TOGETHER if flops < LONG_FLOPS else LONG_TOGETHER
    launches = {name: _repeated(each, together) for name, each in calls.items()}
    found = {name: Measured() for name in calls}
    for number in range(rounds):
        for name in list(launches)[:: -1 if number % 2 else 1]:
            time.sleep(rest_s)
            with clocks.reading(found[name].readings):
                spread = timer.time([launches[name]])
            found[name].rounds.append(spread.median / together)
    return found


def _repeated(calls, count):
    turns = itertools.cycle(calls)

    def launch():
        for _ in range(count):
            next(turns)()

    return launch


class Clocks:
    """Reads the SM clock and the power of a GPU on its own thread, while `reading` is entered.

    source: the library or program that reads them, or the reason why they are not read. NVIDIA's driver refreshes the
    power only every 20 to 100 ms.
    """

    def __init__(self, device):
        self._into, self._stopped = None, False
        self._begun = threading.Event()
        self._thread, self._process = None, None
        if device.kind != "gpu":
            self.source = "the simulated device has no clock"
            return
        try:
            self.source, readings = self._open(_address(device))
        except Exception as error:  # of a library or program that need not be installed
            self.source = f"not read: {type(error).__name__}: {error}"
            return
        self._thread = threading.Thread(target=self._run, args=(readings,), daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stopped = True
        self._begun.set()
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        if self._thread is not None:
            self._thread.join(timeout=1)
        if self._process is not None:
            self._process.stdout.close()

    @contextlib.contextmanager
    def reading(self, into):
        """Append (MHz, watts) to `into` within the context."""
        self._into = into
        self._begun.set()
        try:
            yield
        finally:
            self._begun.clear()
            self._into = None

    def _run(self, readings):
        try:
            for reading in readings:
                if self._stopped:
                    return
                into = self._into
                if into is not None:
                    into.append(reading)
            raise EOFError("its output ended")
        except Exception as error:  # the measurement goes on without readings
            if not self._stopped:
                self.source = f"{self.source} stopped: {type(error).__name__}: {error}"

    def _open(self, address):
        """Return the source's name and an iterator of readings."""
        try:
            import pynvml
        except ImportError:
            return "nvidia-smi", self._of_program(address)
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(address)
        return "NVML", self._of_library(pynvml, handle, _power_of(pynvml, handle))

    def _of_library(self, pynvml, handle, power):
        while True:
            self._begun.wait()  # nothing is read between measurements
            clock = float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            yield clock, None if power is None else power()
            time.sleep(SAMPLE_S)

    def _of_program(self, address):
        command = ["nvidia-smi", "-i", address, "--query-gpu=clocks.sm,power.draw.instant"]
        command += ["--format=csv,noheader,nounits", "--loop-ms=20"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return map(_of_line, self._process.stdout)


def _address(device):
    """The PCI address of a GPU, by which NVML and nvidia-smi find it whatever CUDA_VISIBLE_DEVICES is."""
    domain, bus, slot = (device.attribute(f"PCI_{part}_ID") for part in ("DOMAIN", "BUS", "DEVICE"))
    return f"{domain:08X}:{bus:02X}:{slot:02X}.0"


def _power_of(pynvml, handle):
    """Return a function that reads the power in watts: at this moment if the driver can, else its mean over a second.
    None if neither is supported."""

    def now():
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
        return value.value.uiVal / 1000

    def mean():
        return pynvml.nvmlDeviceGetPowerUsage(handle) / 1000

    for read in (now, mean):
        try:
            read()
        except (pynvml.NVMLError, AttributeError):  # an older driver, or an older pynvml
            continue
        return read
    return None


def _of_line(line):
    """Read a line of nvidia-smi, such as "1980, 312.45"; a field that it does not know is None."""
    return tuple(_number(text) for text in line.split(","))


def _number(text):
    try:
        return float(text)
    except ValueError:
        return None
