"""What we take from Flower that Flower does not export: all of it is listed, and there, in the version installed.

``SINCE`` says in which release a part was looked for and not found; in the next one looked at it is there (looked at
were 1.30, 1.32.1, 1.34, 1.36, 1.38 to 1.42). Where a later Flower has moved it, the test names that version.
"""

import ast
from importlib import import_module
from importlib.metadata import version

import pytest
from support import ROOT

from fedshift_app.flower import polling

#: Modules that Flower exports (its reference names them).
PUBLIC = {
    "flwr.app", "flwr.clientapp", "flwr.clientapp.mod", "flwr.serverapp", "flwr.serverapp.strategy",
}  # fmt: skip
ALWAYS = "none that was looked at"
#: By module and name: the last release in which it was not there.
SINCE = {
    ("flwr.client", "NumPyClient"): ALWAYS,  # kept for old apps, in flwr.compat; each method's client is one
    ("flwr.app.message", "make_message"): "1.30",
    ("flwr.cli.app_cmd.publish", "_collect_file_paths"): ALWAYS,
    ("flwr.cli.app_cmd.publish", "_validate_app_name"): ALWAYS,
    ("flwr.cli.app_cmd.publish", "_validate_files"): ALWAYS,
    ("flwr.cli.config_utils", "load_and_validate"): ALWAYS,
    ("flwr.common.constant", "Status"): ALWAYS,
    ("flwr.common.logger", "update_console_handler"): ALWAYS,
    ("flwr.common.secure_aggregation.crypto.shamir", "combine_shares"): ALWAYS,
    ("flwr.common.secure_aggregation.crypto.shamir", "create_shares"): ALWAYS,
    ("flwr.common.secure_aggregation.crypto.symmetric_encryption", "decrypt"): ALWAYS,
    ("flwr.common.secure_aggregation.crypto.symmetric_encryption", "encrypt"): ALWAYS,
    ("flwr.common.secure_aggregation.crypto.symmetric_encryption", "generate_shared_key"): ALWAYS,
    ("flwr.common.secure_aggregation.secaggplus_utils", "share_keys_plaintext_concat"): ALWAYS,
    ("flwr.common.secure_aggregation.secaggplus_utils", "share_keys_plaintext_separate"): ALWAYS,
    ("flwr.proto.fleet_pb2", "PullMessagesRequest"): ALWAYS,
    ("flwr.proto.fleet_pb2", "PullMessagesResponse"): ALWAYS,
    ("flwr.proto.runtime_pb2", "PullAppMessagesResponse"): "1.32.1",
    ("flwr.proto.runtime_pb2", "PushAppMessagesRequest"): "1.32.1",
    ("flwr.server.superlink.fleet.vce", "vce_api"): ALWAYS,
    ("flwr.server.superlink.fleet.vce.backend.raybackend", "RayBackend"): ALWAYS,
    ("flwr.server.superlink.linkstate.in_memory_linkstate", "InMemoryLinkState"): ALWAYS,
    ("flwr.serverapp.exception", "InconsistentMessageReplies"): ALWAYS,  # what its strategies raise
    ("flwr.supercore", "log"): "1.34",
    ("flwr.supercore.cli.flower_superexec", "flower_superexec"): ALWAYS,
    ("flwr.supercore.constant", "TASK_TYPE_TO_COMMAND"): "1.30",
    ("flwr.supercore.constant", "TaskType"): ALWAYS,
    ("flwr.supercore.date", "now"): ALWAYS,
    ("flwr.supercore.protobuf", "translation"): "1.32.1",
    ("flwr.supercore.superexec", "run_superexec"): ALWAYS,
    ("flwr.supercore.superexec.executor", "ExecutionSpec"): "1.30",
    ("flwr.supercore.superexec.executor", "LaunchResult"): "1.30",
    ("flwr.supercore.task_identity", "TaskIdentity"): "1.36",
    ("flwr.supercore.tls", "validate_and_resolve_root_certificates"): ALWAYS,
    ("flwr.supercore.version", "package_version"): ALWAYS,
    ("flwr.supercore", "telemetry"): "1.30",
    ("flwr.superlink", "extensions"): "1.32.1",
    ("flwr.superlink", "main"): "1.32.1",
    ("flwr.superlink.cli.flower_superlink", "flower_superlink"): "1.32.1",
    ("flwr.superlink.grid", "InMemoryGrid"): "1.30",
    ("flwr.superlink.routers.control", "middlewares"): "1.32.1",
    ("flwr.supernode.cli.flower_supernode", "flower_supernode"): ALWAYS,
    ("flwr.supernode.runtime", "run_clientapp"): ALWAYS,
    ("flwr.simulation.app", "flwr_simulation"): ALWAYS,  # by fedshift.run.launch.fork_server
    # Not imported by a statement, but by the name of a module, or asked of one that is imported.
    ("flwr.server.superlink.fleet.vce.vce_api", "add_messages_to_queue"): ALWAYS,
    ("flwr.superlink.extensions", "get_middleware"): "1.32.1",
    ("flwr.superlink.main", "_get_middleware"): "1.32.1",
    ("flwr.superlink.grid.http_grid", "HttpGrid"): "1.34",
    ("flwr.superlink.grid.http_grid", "inflate_object_from_contents"): "1.34",
    ("flwr.superlink.grid.inmemory_grid", "InMemoryGrid"): "1.30",
    (polling.NODE, "start_client_internal"): ALWAYS,
    (polling.NODE, "_pull_and_store_message"): ALWAYS,
    (polling.NODE, "_push_messages"): ALWAYS,
    (polling.NODE, "pull_objects"): ALWAYS,
    ("flwr.superlink.grid.http_grid", "pull_objects"): "1.34",
    ("flwr.supercore.exit.exit", "event"): "1.30",
    ("flwr.supercore.exit.exit_handler", "trigger_exit_handlers"): "1.30",
    ("flwr.supercore.heartbeat", "HeartbeatFailure"): ALWAYS,
    (polling.CONNECTION, "HeartbeatSender"): "1.38",
    (polling.NODE, "get_fused_config_from_fab"): ALWAYS,
    (polling.HANDLERS, "push_task_output"): "1.32.1",
    (polling.HANDLERS, "fab_to_proto"): "1.32.1",
    ("flwr.supercore.superexec.run_superexec", "get_executor"): "1.30",
    ("flwr.supernode.runtime.run_clientapp", "run_clientapp"): ALWAYS,
    ("flwr.supernode.runtime.run_clientapp", "install_from_fab"): ALWAYS,
    ("flwr.supernode.runtime.run_clientapp", "get_load_client_app_fn"): ALWAYS,
}


@pytest.mark.parametrize(("module", "name"), SINCE, ids=lambda part: part)
def test_it_is_there(module: str, name: str) -> None:
    here = version("flwr")
    result = f"broke in Flower {here} (there in 1.41 and 1.42, before them not in {SINCE[module, name]})"
    try:
        outcome = import_module(module)
    except ImportError as error:
        pytest.fail(f"{module} {result}: {error}")
    if not hasattr(outcome, name):
        try:
            import_module(f"{module}.{name}")
        except ImportError as error:
            pytest.fail(f"{module}.{name} {result}: {error}")


def test_all_of_them_are_listed() -> None:
    imported = set()
    for part in ("fedshift_app", "strategies", "clients", "datasets", "fedshift_core"):
        for path in (ROOT / part).rglob("*.py"):
            for place in ast.walk(ast.parse(path.read_text())):
                assert not isinstance(place, ast.Import) or not any(n.name.startswith("flwr") for n in place.names)
                if isinstance(place, ast.ImportFrom) and (place.module or "").split(".")[0] == "flwr":
                    imported |= {(str(place.module), alias.name) for alias in place.names}
    assert {part for part in imported if part[0] not in PUBLIC} <= SINCE.keys()
