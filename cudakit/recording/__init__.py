"""Record the launches of a block to one file, and replay them on another machine.

    with cudakit.record("bug.cudakit"):
        train_step()

    cudakit replay bug.cudakit            # on the simulated device, under all checks, compared with the recording

`recorder` follows the launches, `memory` reads the memory they can access, `triton_launches` records Triton's own
launches, `snapshot` gathers what is saved of a launch and `code` its module, `launches` has the records, `file` writes
and reads their members, `reading` reads the records, and `fields` checks each field. `recordings` has the public
`Recording`; `replaying` launches its launches again, `loading` puts their memory on a device, `rebuilding` compiles
their source again for a debugger, and `difference` compares the results.
"""

from __future__ import annotations

from cudakit.recording.file import RecordingError
from cudakit.recording.launches import RecordedLaunch
from cudakit.recording.recorder import record
from cudakit.recording.recordings import Recording, load
from cudakit.recording.replaying import Report

__all__ = ["RecordedLaunch", "Recording", "RecordingError", "Report", "load", "record"]
