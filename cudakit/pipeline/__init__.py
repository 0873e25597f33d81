"""Pipelines: a stream of chunks through a function of device arrays, larger than the device and than memory.

    def add(chunk, a, b, out):
        ops.add(a, b, out=out, stream=chunk.stream)

    report = pipeline.run(add, ("a.npy", "b.npy"), "sum.npy", streams=4)
    print(report)

Reading, the copies both ways, the work and writing overlap: threads read into pinned buffers and write from them, and
each chunk's copies and work are queued on one of a few streams. A pinned buffer is filled again only when its copy has
finished. The last chunk is as short as it comes. A failure stops the run, names the chunk, and leaves every finished
chunk where it belongs; `resume=True` does what is left, if the job and the sources are the same. A run has the files it
writes to itself: a second run into them is refused.
"""

from cudakit.pipeline.chunk import Chunk, Progress
from cudakit.pipeline.entry import run
from cudakit.pipeline.file_sinks import ToFile, ToMap
from cudakit.pipeline.folder_sink import ToFolder
from cudakit.pipeline.refusals import (
    ContentsRefused,
    FileMissing,
    FileOccupied,
    FileRefused,
    OutputBusy,
    PipelineRefused,
)
from cudakit.pipeline.report import ChunkSpan, Link, PipelineError, PipelineReport
from cudakit.pipeline.sequential import sequential
from cudakit.pipeline.sink import Sink, SinkSpec
from cudakit.pipeline.sinks import Each, Nowhere, ToArray
from cudakit.pipeline.sources import Blocks, Filled, FromArray, FromFile, FromFiles, Item, Source

__all__ = [
    "Blocks", "Chunk", "ChunkSpan", "ContentsRefused", "Each", "FileMissing", "FileOccupied", "FileRefused", "Filled",
    "FromArray", "FromFile", "FromFiles", "Item", "Link", "Nowhere", "OutputBusy", "PipelineError", "PipelineRefused",
    "PipelineReport", "Progress", "Sink", "SinkSpec", "Source", "ToArray", "ToFile", "ToFolder", "ToMap", "run",
    "sequential",
]  # fmt: skip
