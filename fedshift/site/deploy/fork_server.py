"""The program of a node's ClientApp: works on one message with the app that is installed here.

A SuperExec forks it from a process that has imported that app (:mod:`fedshift.site.deploy.warm`), in milliseconds.
``fork_server.py SIGNER`` works on the one message of which it reads the task, for a node that forks none. Of a run's
bundle it has a note alone, by which the app refuses messages of runs with other code
(:mod:`fedshift_app.node.own_code`).
"""

import json
import os
import signal
import sys
import traceback
from importlib import import_module
from typing import Any, NoReturn

from fedshift.run.launch import forks

BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # NumPy's own would not survive a fork
TELEMETRY = "FLWR_TELEMETRY_ENABLED"  # Flower's, which counts as 1 where it is not set


def forked(task: dict[str, Any], *signer: forks.File) -> NoReturn:
    """Work on a task in a process that was forked for it; with the socket of a node's signer."""
    from fedshift_app.node import node_key

    forks.adopt(dict(os.environ))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["flwr-clientapp"]
    node_key.use(os.dup(signer[0].fileno()) if signer else node_key.NONE)
    work(task)


def work(task: dict[str, Any]) -> NoReturn:
    """Run this node's ClientApp for one task, as ``flwr-clientapp`` runs that of the bundle, and exit."""
    code = 1
    try:
        from flwr.supercore.tls import validate_and_resolve_root_certificates
        from flwr.supernode.runtime import run_clientapp

        from fedshift_app.node import own_code

        own_code.installed()
        flower: Any = run_clientapp
        flower.install_from_fab = own_code.take
        flower.get_load_client_app_fn = lambda **_: lambda *_names: import_module("fedshift_app.client_app").app
        if os.environ.get(TELEMETRY) == "0":
            _keep_silent()
        flower.run_clientapp(
            runtime_api_address=task["address"],
            token=task["token"],
            insecure=task["insecure"],
            certificates=validate_and_resolve_root_certificates(task["certificates"], task["insecure"]),
            parent_pid=task["parent"],
            runtime_dependency_install=False,
        )
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the reply is sent, and an orderly end of torch takes longer than a fork


def _keep_silent() -> None:
    """Switch off Flower's telemetry, which starts a thread and a program (``file``) even where it may not send."""
    from flwr.supercore import telemetry
    from flwr.supernode.runtime import run_clientapp

    for module in (run_clientapp, import_module("flwr.supercore.exit.exit")):
        if getattr(module, "event", None) is telemetry.event:
            module.event = lambda *_given, **_options: None  # type: ignore[attr-defined]


if __name__ == "__main__":
    from fedshift_app.node import node_key

    os.environ.setdefault(BLAS_THREADS, "1")
    node_key.use(int(sys.argv[1]))
    sys.argv = ["flwr-clientapp"]
    work(json.loads(sys.stdin.read()))
