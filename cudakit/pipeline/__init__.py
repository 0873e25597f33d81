"""Pipelines: process data larger than device or host memory, in chunks, with a function of device arrays.

    def add(chunk, a, b, out):
        ops.add(a, b, out=out, stream=chunk.stream)

    report = pipeline.run(add, ("a.npy", "b.npy"), "sum.npy", streams=4)
    print(report)

Reading, copies in both directions, computation and writing overlap: threads read into pinned buffers and write from
them, and the copies and work of each chunk are queued on one of several streams. A pinned buffer is filled again only
after its copy has finished. The last chunk may be shorter. After a failure the run stops, reports the chunk, and keeps
all finished chunks; `resume=True` computes the rest, if the job and the sources are unchanged. A run locks the files it
writes: a second run that writes to them raises `OutputBusy`.
"""

from cudakit.pipeline.chunk import Chunk, Progress, WorkerProgress
from cudakit.pipeline.cluster import WorkerLost
from cudakit.pipeline.entry import run
from cudakit.pipeline.file_sinks import ToFile, ToMap
from cudakit.pipeline.folder_sink import ToFolder
from cudakit.pipeline.folder_source import FromFiles
from cudakit.pipeline.fsspec_sink import ToFSSpec
from cudakit.pipeline.fsspec_source import FromFSSpec
from cudakit.pipeline.hdf5 import FromHDF5, ToHDF5
from cudakit.pipeline.kvikio_source import FromKvikIO
from cudakit.pipeline.parquet import FromParquet
from cudakit.pipeline.parquet_sink import ToParquet
from cudakit.pipeline.refusals import (
    ContentsRefused,
    FileMissing,
    FileOccupied,
    FileRefused,
    OutputBusy,
    PipelineRefused,
)
from cudakit.pipeline.report import ChunkSpan, Link, PipelineError, PipelineReport, WorkerReport
from cudakit.pipeline.sequential import sequential
from cudakit.pipeline.sink import Sink, SinkSpec
from cudakit.pipeline.sinks import Each, Nowhere, ToArray
from cudakit.pipeline.sources import Blocks, Filled, FromArray, FromFile, Item, Source
from cudakit.pipeline.tiff import FromTIFF, ToTIFF
from cudakit.pipeline.zarr_sink import ToZarr
from cudakit.pipeline.zarr_source import FromZarr

__all__ = [
    "Blocks",
    "Chunk",
    "ChunkSpan",
    "ContentsRefused",
    "Each",
    "FileMissing",
    "FileOccupied",
    "FileRefused",
    "Filled",
    "FromArray",
    "FromFSSpec",
    "FromFile",
    "FromFiles",
    "FromHDF5",
    "FromKvikIO",
    "FromParquet",
    "FromTIFF",
    "FromZarr",
    "Item",
    "Link",
    "Nowhere",
    "OutputBusy",
    "PipelineError",
    "PipelineRefused",
    "PipelineReport",
    "Progress",
    "Sink",
    "SinkSpec",
    "Source",
    "ToArray",
    "ToFSSpec",
    "ToFile",
    "ToFolder",
    "ToHDF5",
    "ToMap",
    "ToParquet",
    "ToTIFF",
    "ToZarr",
    "WorkerLost",
    "WorkerProgress",
    "WorkerReport",
    "run",
    "sequential",
]  # fmt: skip
