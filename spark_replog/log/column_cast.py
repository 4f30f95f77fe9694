"""Casts columns to a schema's types without losing a value: of writers' input, and of rows of older versions. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""By the size of a signed integer in bits: how many decimal digits its largest value has."""
_EXACT_BITS = {16: 11, 32: 24, 64: 53}
"""By the size of a float in bits: up to how many bits of an integer it holds exactly."""


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether every value of the old type is one of the new type, which is canonical (`ddl.canonical_field`).

    So numbers and decimals may grow, structs may get fields, and layouts (large, view, dictionary, unit of time) do not
    count. Nanoseconds count as microseconds: `cast_column` refuses values that are not whole ones.
    """
    types = pa.types
    if isinstance(old, pa.BaseExtensionType):
        return widens(old.storage_type, new)
    if types.is_dictionary(old) or types.is_run_end_encoded(old):
        return widens(old.value_type, new)
    if old == new or types.is_null(old):
        return True
    if types.is_integer(old):
        return _integer_widens(old, new)
    if types.is_floating(old):
        return bool(types.is_floating(new) and new.bit_width >= old.bit_width)
    if types.is_decimal(old):
        if not types.is_decimal(new):
            return False
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    if types.is_struct(old) and types.is_struct(new):
        fields = {field.name: field.type for field in new}
        return all(field.name in fields and widens(field.type, fields[field.name]) for field in old)
    if types.is_map(old) and types.is_map(new):
        return widens(old.key_type, new.key_type) and widens(old.item_type, new.item_type)
    if types.is_nested(old) and types.is_list(new) and hasattr(old, "value_type"):
        return widens(old.value_type, new.value_type)
    return _is_same_kind(old, new)


def _integer_widens(old: pa.DataType, new: pa.DataType) -> bool:
    types = pa.types
    bits = old.bit_width + bool(types.is_unsigned_integer(old))  # signed bits that hold it
    if types.is_signed_integer(new):
        return bool(bits <= new.bit_width)
    if types.is_floating(new):
        return bool(bits - 1 <= _EXACT_BITS[new.bit_width])
    digits = INTEGER_DIGITS[old.bit_width] + (old == pa.uint64())
    return bool(types.is_decimal(new) and new.precision - new.scale >= digits)


def _is_same_kind(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether two types differ in their layout only."""
    types = pa.types
    if types.is_timestamp(old) and types.is_timestamp(new):
        return (old.tz is None) == (new.tz is None)
    return any(
        old_is(old) and new_is(new)
        for old_is, new_is in (
            (types.is_large_string, types.is_string),
            (types.is_string_view, types.is_string),
            (types.is_large_binary, types.is_binary),
            (types.is_binary_view, types.is_binary),
            (types.is_fixed_size_binary, types.is_binary),
            (types.is_date64, types.is_date32),
            (types.is_duration, types.is_duration),
        )
    )


def cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as a type that its own type `widens` to; the same memory where the layout is equal.

    Also as a narrower one, which rows of a newer version may need: fields of structs that it lacks are left out.

    Raises:
        pa.ArrowInvalid: a value does not fit a narrower type exactly; a time is not a whole number of microseconds or
            out of range, or the column is too large for 32-bit offsets.
    """
    types = pa.types
    if isinstance(column, pa.ExtensionArray):
        return cast_column(column.storage, kind)
    if types.is_dictionary(column.type):
        return cast_column(column.dictionary_decode(), kind)
    if types.is_run_end_encoded(column.type):
        return cast_column(pc.run_end_decode(column), kind)
    if column.type.equals(kind, check_metadata=True):
        return column
    if types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if not types.is_nested(kind):
        return _cast_flat(column, kind)
    if types.is_struct(kind):
        return _cast_struct(column, kind)
    if types.is_map(kind):
        return _cast_map(column, kind)
    return _cast_list(column, kind)


def _cast_flat(column: pa.Array, kind: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_timestamp(kind) and kind.tz is not None and column.type.unit == kind.unit:
        return column.view(kind)  # another zone: the same instants
    made = column.cast(kind)
    if types.is_floating(kind) and types.is_floating(column.type) and kind.bit_width < column.type.bit_width:
        _check_floats(column, made)  # Arrow rounds them
    return made


def _check_floats(column: pa.Array, made: pa.Array) -> None:
    is_other = pc.and_not(pc.not_equal(column, made.cast(column.type)), pc.is_nan(column))
    if pc.any(is_other).as_py():
        value = column.filter(is_other)[0].as_py()
        raise pa.ArrowInvalid(f"{value!r} is not exactly a {made.type}")


def _validity(column: pa.Array) -> pa.Buffer | None:
    """Return the validity bitmap of an array without an offset."""
    return column.buffers()[0] if column.null_count else None


def _at_start(column: pa.Array) -> pa.Array:
    """Return the column as an array whose buffers begin with its first row."""
    return pa.concat_arrays([column]) if column.offset else column


def _end(column: pa.Array) -> int:
    """Return where the values of the rows of a list or map end: those of rows behind a slice are there too."""
    end: int = column.offsets[len(column)].as_py() if len(column) else 0
    return end


def _cast_struct(column: pa.Array, kind: pa.DataType) -> pa.Array:
    column = _at_start(column)
    at = {field.name: number for number, field in enumerate(column.type)}
    children = [
        cast_column(column.field(at[field.name]), field.type) if field.name in at else pa.nulls(len(column), field.type)
        for field in kind
    ]
    return pa.Array.from_buffers(kind, len(column), [_validity(column)], column.null_count, children=children)


def _cast_list(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    column = _at_start(column)
    values = cast_column(column.values[: _end(column)], kind.value_type)
    buffers = [_validity(column), column.buffers()[1]]
    return pa.Array.from_buffers(kind, len(column), buffers, column.null_count, children=[values])


def _cast_map(column: pa.Array, kind: pa.DataType) -> pa.Array:
    column = _at_start(column)
    end = _end(column)
    entries = pa.StructArray.from_arrays(
        [cast_column(column.keys[:end], kind.key_type), cast_column(column.items[:end], kind.item_type)],
        fields=[kind.key_field, kind.item_field],
    )
    buffers = [_validity(column), column.buffers()[1]]
    return pa.Array.from_buffers(kind, len(column), buffers, column.null_count, children=[entries])


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type's values are numbers, so that a narrower type may hold some of them."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
