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


def forked(task: dict[str, Any], *signer: forks.File) -> NoReturn:
    """Work on a task in a process that was forked for it; with the socket of a node's signer."""
    from fedshift_app.node import node_key

    forks.adopt(dict(os.environ))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    node_key.use(os.dup(signer[0].fileno()) if signer else node_key.NONE)
    work(task)


def work(task: dict[str, Any]) -> NoReturn:
    """Run this node's ClientApp for one task, as ``flwr-clientapp`` runs that of the bundle, and exit."""
    code = 1
    try:
        from fedshift_app.flower import sources
        from fedshift_app.node import own_code

        own_code.installed()
        flower: Any = import_module(sources.CLIENT_APP)
        flower.install_from_fab = own_code.take
        flower.get_load_client_app_fn = lambda **_: lambda *_names: import_module("fedshift_app.client_app").app
        sys.argv = ["flwr-clientapp", f"--runtime-api-address={task['address']}", f"--token={task['token']}"]
        if task["insecure"]:
            sys.argv += ["--insecure"]
        elif task["certificates"]:
            sys.argv += ["--root-certificates", task["certificates"]]
        if task["parent"]:
            sys.argv += ["--parent-pid", str(task["parent"])]
        sources.program("flwr-clientapp")()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the reply is sent, and an orderly end of torch takes longer than a fork


if __name__ == "__main__":
    from fedshift_app.node import node_key

    os.environ.setdefault(BLAS_THREADS, "1")
    node_key.use(int(sys.argv[1]))
    work(json.loads(sys.stdin.read()))
