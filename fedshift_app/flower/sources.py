"""The names that FedShift takes of Flower though Flower does not export them, and the source that it has read.

A correction steps aside, with a line, where a name of it is gone, or a function that it replaces or relies on has
another source. Where a door would stand open, FedShift refuses (``docs/upstream.md``).
"""

import functools
import hashlib
import inspect
from importlib.metadata import entry_points, version
from pkgutil import resolve_name
from typing import Any

NODE = "flwr.supernode.start_client_internal"
HANDLERS = "flwr.supernode.servicer.runtime.runtime_handlers"
CLIENT_APP = "flwr.supernode.runtime.run_clientapp"
SUPEREXEC = "flwr.supercore.superexec.run_superexec"
GRID = "flwr.superlink.grid.http_grid"
ENGINE = "flwr.server.superlink.fleet.vce.vce_api"
#: What breaks without each.
NAMES = {
    "flwr.app.message:make_message": "a reply that cannot be read, or a node started anew, stops the run or its round",
    "flwr.supercore.task_identity:TaskIdentity": "engine=inline and tests make no Message",
    "flwr.superlink.extensions:get_middleware": "the Control API is open to the network: `fedshift superlink` refuses",
    "flwr.superlink.main:_get_middleware": "nobody notices that the Control API is open",
    f"{GRID}:inflate_object_from_contents": "one node's nonsense ends everybody's run",
    "flwr.supercore.inflatable.inflatable_utils:pull_objects": "a deployed round takes 1.1 s longer",
    "flwr.server.superlink.fleet.vce.backend.raybackend:RayBackend": "Ray is open, a dead worker counts as a client",
    f"{NODE}:_pull_and_store_message": "a ClientApp begins with the state of two messages ago",
    f"{NODE}:time": "a message waits 3 s for its node, a reply 0.5 s",
    f"{NODE}:subprocess": "each message imports torch anew, and runs the code of the bundle",
    f"{NODE}:get_fused_config_from_fab": "a SuperNode reads a stranger's bundle",
    f"{HANDLERS}:fab_to_proto": "a ClientApp is given a stranger's bundle",
    f"{HANDLERS}:push_task_output": "as _pull_and_store_message",
    "flwr.supernode.fleet_http_connection:FleetHttpClient": "a node goes offline at one failed heartbeat",
    "flwr.supercore.heartbeat:HEARTBEAT_DEFAULT_INTERVAL": "a killed node is missed after a minute, not 20 s",
    f"{CLIENT_APP}:install_from_fab": "a node unpacks the code of the bundle",
    f"{CLIENT_APP}:get_load_client_app_fn": "a node runs the code of the bundle",
    f"{SUPEREXEC}:get_executor": "as subprocess",
    f"{SUPEREXEC}:time": "a message waits up to a second for its process",
    "flwr.supercore.superexec.executor:LaunchResult": "as subprocess",
    "flwr.serverapp.exception:InconsistentMessageReplies": "plain.py's refusals have another exit code",
    "flwr.cli.config_utils:load_and_validate": "`fedshift doctor` cannot tell what Flower Hub refuses",
    "flwr.cli.app_cmd.publish:_validate_app_name": "likewise",
    "flwr.cli.app_cmd.publish:_collect_file_paths": "likewise",
    "flwr.cli.app_cmd.publish:_validate_files": "likewise",
}
#: The start of the SHA-256 of each function or class that is replaced or relied on, in Flower 1.41 and 1.42.
READ = {
    f"{NODE}:start_client_internal": "9e89a6eb68fbec68",
    f"{NODE}:_pull_and_store_message": "eaf5d0e36dc34e4c",
    f"{NODE}:_push_messages": "00bb86faffdec114",
    "flwr.supernode.fleet_http_connection:http_request_response": "b80ca36779c2657f",
    f"{HANDLERS}:pull_task_input": "035e6c69a7cffcad",
    f"{HANDLERS}:push_task_output": "1d148b25ce523291",
    f"{CLIENT_APP}:run_clientapp": "6ce09559f3a2f5dc",
    f"{SUPEREXEC}:run_superexec": "d11f4e7fbc8f0b12 91e7a33c5b898f33",
    "flwr.supercore.inflatable.inflatable_utils:pull_objects": "31bb2de46b450e6a",
    f"{GRID}:HttpGrid": "72e288cdc292c3fd",
    "flwr.server.superlink.fleet.vce.backend.raybackend:RayBackend": "2ad67054433feddf",
}


def found(name: str) -> Any:
    """Return what a name of ``NAMES`` stands for; None where this Flower has it no longer."""
    try:
        return resolve_name(name)
    except (ImportError, AttributeError):
        return None


def other_source(*modules: str) -> str:
    """Return what in these modules is gone or has another source, and of which Flower; empty if all is as read."""
    for name in (name for name in (*NAMES, *READ) if name.startswith(modules)):
        it = found(name)
        if it is None or (name in READ and _mark(it) not in READ[name]):
            return f"{name} of Flower {version('flwr')} is not as in 1.41 and 1.42"
    return ""


def _mark(it: Any) -> str:
    try:
        return hashlib.sha256(inspect.getsource(it).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return "none"


@functools.cache
def program(name: str) -> Any:
    """Return the function behind one of Flower's commands, which reads ``sys.argv``."""
    (entry,) = entry_points(group="console_scripts", name=name)
    return entry.load()
