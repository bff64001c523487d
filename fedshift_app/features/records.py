"""Records of arrays by domain that nodes send with their scores: read, with names, shapes and types checked."""

from collections.abc import Mapping

from flwr.app import RecordDict

from fedshift_core.arrays import Arrays
from fedshift_core.limits import Refused
from fedshift_core.wire.records import array_record
from fedshift_core.wire.rows import unlike
from fedshift_strategies.federation.updates import decode


def read(
    content: RecordDict, name: str, wanted: Mapping[str, Mapping[str, tuple[tuple[int, ...], type]]]
) -> dict[str, Arrays]:
    """Return the arrays of a record by domain; a domain of which it has none is left out.

    Args:
        content: The node's reply.
        name: The record, which a reply may lack.
        wanted: By domain, shape and type of each array.

    Raises:
        Refused: If a name, shape or type is not what it should be.
    """
    if name not in content:
        return {}
    record = array_record(content, name)
    if record is None:
        raise Refused(f"the record {name!r} is not one of arrays")
    arrays = decode(record)
    there = {domain: names for domain, names in wanted.items() if arrays.keys() & names.keys()}
    if why := unlike(arrays, {each: kind for names in there.values() for each, kind in names.items()}):
        raise Refused(f"{name}: {why}")
    return {domain: {each: arrays[each] for each in names} for domain, names in there.items()}
