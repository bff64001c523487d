"""Records of arrays by domain that nodes send with their scores: read, with names, shapes and types checked."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.limits import MOST_NAME, Refused, plain
from fedshift_core.wire.records import array_record
from fedshift_strategies.federation.updates import decode


def read(
    content: RecordDict, name: str, what: str, wanted: Mapping[str, Mapping[str, tuple[tuple[int, ...], type]]]
) -> dict[str, Arrays]:
    """Return the arrays of a record by domain; a domain of which it has none is left out.

    Args:
        content: The node's reply.
        name: The record, which a reply may lack.
        what: It holds, as a refusal says.
        wanted: By domain, shape and type of each array.

    Raises:
        Refused: If a name, shape or type is not what it should be.
    """
    if name not in content:
        return {}
    record = array_record(content, name)
    if record is None:
        raise Refused(f"the record {name!r} is not one of arrays")
    known = {each for names in wanted.values() for each in names}
    for each in record:
        if each not in known:
            raise Refused(f"unknown {what} {plain(each, MOST_NAME)!r}")
    arrays = decode(record)
    by_domain = {}
    for domain, names in wanted.items():
        if arrays.keys() & names.keys():
            by_domain[domain] = {each: _checked(arrays, each, what, *names[each]) for each in names}
    return by_domain


def _checked(arrays: Arrays, name: str, what: str, shape: tuple[int, ...], kind: type) -> NDArray[Any]:
    if name not in arrays:
        raise Refused(f"the {what} lack {name}")
    array = arrays[name]
    if array.shape != shape or array.dtype != kind:
        raise Refused(f"{name} has shape {array.shape} and type {array.dtype}, expected {shape} and {np.dtype(kind)}")
    return array
