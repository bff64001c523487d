"""What features keep on a node between messages of a run: records of ``context.state``, one of each feature.

A SuperNode starts a process for each message, so Flower keeps them; they never travel and are on no disk of ours.
"""

from flwr.app import ConfigRecord, Context

from fedshift_core.wire.records import config_record

PREFIX = "feature-"


def kept_for(context: Context, name: str) -> ConfigRecord:
    """Return the record of a feature, which may be changed in place."""
    record = config_record(context.state, PREFIX + name)
    if record is None:
        record = context.state[PREFIX + name] = ConfigRecord()
    return record


def holds(context: Context) -> bool:
    """Tell whether a feature keeps anything of the node."""
    return any(name.startswith(PREFIX) and config_record(context.state, name) for name in context.state)
