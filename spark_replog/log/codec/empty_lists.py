"""Lists of no values: Arrow's format lets them come without offsets, and of some pyarrow then ends the process. Pure.

Spark 4.0 and 4.1 (Arrow's Java library 18.1 and 18.3) write an inner list of length 0 without its one offset, and
Arrow's IPC reader makes a null pointer of it. ``nbytes`` and ``concat_arrays`` follow this pointer; a full validation
passes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def with_offsets(array: pa.Array) -> pa.Array:
    """Return an array of N >= 0 values in which each list and map has offsets; itself if that is so already."""
    if not pa.types.is_nested(array.type) or not _lacks_offsets(array):
        return array
    return array.take(pa.array(np.arange(len(array))))  # makes all offsets anew


def batch_with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose lists and maps have offsets; itself if that is so already."""
    columns = [with_offsets(column) for column in batch.columns]
    if all(made is column for made, column in zip(columns, batch.columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _lacks_offsets(array: pa.Array) -> bool:
    types = pa.types
    if types.is_struct(array.type):
        return any(_lacks_offsets(array.field(number)) for number in range(array.type.num_fields))
    if not (types.is_list(array.type) or types.is_large_list(array.type) or types.is_map(array.type)):
        return False
    offsets = array.buffers()[1]
    if offsets is None or not offsets.size:
        return True
    if types.is_map(array.type):
        return _lacks_offsets(array.keys) or _lacks_offsets(array.items)
    return _lacks_offsets(array.values)
