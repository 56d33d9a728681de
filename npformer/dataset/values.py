"""The values of Arrow's arrays as Python objects, which do not depend on whether pandas is installed.

Python's datetimes have microsecond resolution and end with the year 9999. If pandas is installed, pyarrow returns
pandas objects for nanoseconds. Times that Python cannot represent therefore become texts, at any depth of lists and
objects.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

TIMES = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time64)


def as_list(array: Any) -> list[Any]:
    """Returns the values of an array or a column. Texts that are not valid UTF-8 are returned as bytes."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if not _has_nanoseconds(array.type):
        try:
            return array.to_pylist()
        except (ValueError, OverflowError):  # raised for some times, and for texts that are not valid UTF-8
            pass
    return [_value(each) for each in array]


def _has_nanoseconds(kind: Any) -> bool:
    """Returns whether values of a type contain times in nanoseconds."""
    if pa.types.is_dictionary(kind):
        return _has_nanoseconds(kind.value_type)
    return _in_nanoseconds(kind) or any(_has_nanoseconds(kind.field(i).type) for i in range(kind.num_fields))


def _in_nanoseconds(kind: Any) -> bool:
    return any(test(kind) for test in TIMES) and kind.unit == "ns"


def _value(scalar: Any) -> Any:
    """Returns the value of a scalar, including times and texts that `as_py` cannot return."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.DictionaryScalar):
        return _value(scalar.value)
    if isinstance(scalar, pa.MapScalar):
        return [tuple(map(_value, each.values())) for each in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [_value(each) for each in scalar.values]
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(each) for name, each in scalar.items()}
    if _in_nanoseconds(scalar.type):
        return _time(scalar)
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes()
    except (ValueError, OverflowError):  # raised for a time after the year 9999
        return scalar.cast(pa.string()).as_py()


def _time(scalar: Any) -> Any:
    """Returns Python's object for a time in nanoseconds, or a text if it is not a whole number of microseconds."""
    kind = scalar.type
    whole, rest = divmod(scalar.value, 1000)
    if pa.types.is_duration(kind):
        span = pa.scalar(whole, pa.duration("us")).as_py()
        return span if not rest else f"{span}{'' if span.microseconds else '.000000'}{rest:03}"
    time = pa.scalar(whole, pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.time64("us")).as_py()
    if not rest:
        return time
    text = time.isoformat(timespec="microseconds")
    end = text.index(".") + 7
    return f"{text[:end]}{rest:03}{text[end:]}"
