"""Adds to Flower's simulation engine: a password for Ray, and a new worker for one that died.

Flower's own ``RayBackend`` starts Ray open to anyone who reaches its ports. It also returns an actor whose process
died to the idle ones, so that every later message for it is lost. Ray gives its processes 30 seconds to start, which
they miss on a machine that does much else; here it gets a second try, and then the run ends with one line.
"""

import json
import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from fedshift_app.flower import few_servers, sources
from fedshift_core.atomic_io import write_atomically
from fedshift_core.env import ALL_WRITTEN, STATUS_FILE
from fedshift_core.errors import FederationError
from fedshift_core.limits import plain

log = logging.getLogger("fedshift")

BACKEND = "flwr.server.superlink.fleet.vce.backend.raybackend"
MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
LOOPBACK = "127.0.0.2"  # a loopback address on Linux; Ray takes 127.0.0.1 for "the address that others reach"
TRIES = 3  # for one message, each on another worker; the message may be what kills them
STARTS = 2  # of Ray
MISTAKES = (ImportError, TypeError, ValueError)  # of a start, which would fail again
MOST_REASON = 200  # characters


def prepare() -> None:
    """Patch the simulation engine in its process, before Ray starts; called when the app is loaded.

    Raises:
        FederationError: If this Flower's engine is another: Ray would be open, and a dead worker count as a client.
    """
    if sources.ENGINE not in sys.modules:  # a node's process, or a worker's
        return
    backend = sources.found(f"{BACKEND}:RayBackend")
    if backend is None or backend.process_message is not process_message:
        if problem := sources.other_source(BACKEND):
            raise FederationError(f"a simulation would be open to others on this machine's ports: {problem}")
        backend.init_ray = _init_ray
        backend.process_message = process_message


def _init_ray(_backend: Any, backend_config: dict[str, Any]) -> None:
    """Start Ray for this process alone, or join the cluster that is asked for.

    Flower passes the workers their path in a Ray runtime environment, for which each starts twice and workers started
    in advance are discarded. Here Ray's processes inherit the path from this one.
    """
    import ray

    if ray.is_initialized():
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    options: dict[str, Any] = {"include_dashboard": False} | dict(backend_config.get("init_args") or {})
    if os.environ.get("RAY_ADDRESS"):
        ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}, **options)
        return
    if not os.environ.get(
        MODE
    ):  # each process inherits the token from this one's environment; no call is served without
        from ray._raylet import Config  # type: ignore[attr-defined]

        os.environ |= {MODE: "token", TOKEN: secrets.token_hex(32)}
        Config.initialize("")  # Ray read its environment on import
    if sys.platform == "linux":
        options = {"_node_ip_address": LOOPBACK} | options
    # local: without an address Ray joins what `ray start` noted on this machine, even if that is long dead.
    _start_ray({"address": "local"} | options)


def _start_ray(options: dict[str, Any]) -> None:
    """Start Ray; once more where its processes do not come up in its time.

    Raises:
        FederationError: If they do not either, which ``fedshift run`` shows in place of Flower's traceback.
    """
    import ray

    for left in reversed(range(STARTS)):
        try:
            with few_servers.few_servers(options):
                ray.init(**options)
        except MISTAKES:
            raise
        except Exception as error:  # Ray has no class of its own for this
            why = plain((str(error) or type(error).__name__).partition(". ")[0].strip(), MOST_REASON)
            ray.shutdown()
            if not left:
                raise _given_up(why) from error
            log.warning("Ray did not start (%s); one more try", why, extra={"event": "ray_again"})
        else:
            return


def _given_up(why: str) -> FederationError:
    error = FederationError(
        f"Ray did not start in {STARTS} tries ({why}). The machine may be too busy for its processes: run again when "
        "less runs here, with fewer clients at a time (actors=1), or without Ray (engine=inline)"
    )
    if file := os.environ.get(STATUS_FILE):  # of ``fedshift_app.server_app``, which waits for its nodes
        write_atomically(Path(file), json.dumps({"state": "failed", "run_folder": None, "error": str(error)}))
        print(ALL_WRITTEN, flush=True)
    return error


def process_message(self: Any, message: Message, context: Context) -> tuple[Message, Context]:
    """Return a worker's answer to a message; if its process dies, another worker repeats it from the same context.

    Replaces ``RayBackend.process_message``; ``self`` is the backend.

    Raises:
        RayError: If ``TRIES`` workers died on the message, which stops the run
            (``fedshift_strategies.base``: an error that the node's app did not report itself).
    """
    import ray
    from ray.exceptions import OutOfMemoryError, RayActorError, RayError, WorkerCrashedError

    pool = self.pool
    job = (self.app_fn, message, str(context.node_config["partition-id"]), context)
    worker_error: RayError | None = None
    for _ in range(TRIES):
        future = pool.submit(lambda actor, *given: actor.run.remote(*given), job)
        try:
            _, reply, updated = ray.get(future)
        except (RayActorError, WorkerCrashedError, OutOfMemoryError) as error:
            worker_error = error
            del pool._future_to_actor[future]
            pool.pool.append(pool.create_actor_fn())
            log.warning("a worker of the simulation died; another one repeats its work", extra={"event": "worker_died"})
        except BaseException:
            pool.add_actor_back_to_pool(future)
            raise
        else:
            pool.add_actor_back_to_pool(future)
            return reply, updated
    assert worker_error is not None  # otherwise one of them answered
    raise worker_error
