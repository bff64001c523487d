"""What Flower's simulation engine lacks: a password for Ray, and a fresh worker for one that died.

Flower's own ``RayBackend`` starts Ray open to whoever reaches its ports, and puts an actor whose process died back
among the idle ones, so that every later message that it is handed is lost.
"""

import logging
import os
import secrets
import sys
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message

from fedshift_app.flower import simulation_queue
from fedshift_core.env import STATUS_FILE

log = logging.getLogger("fedshift")

ENGINE = "flwr.server.superlink.fleet.vce.vce_api"  # is there in the process that simulates, and in no node's
MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
LOOPBACK = "127.0.0.2"  # the whole of 127/8 is, on Linux; Ray takes 127.0.0.1 for "the address that others reach"
TRIES = 3  # of one message, each on another worker; its work may be what kills them


def prepare() -> None:
    """Mend the simulation engine, if this process is one and has not started Ray yet; called when the app is loaded."""
    if ENGINE in sys.modules:
        from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend

        if RayBackend.process_message is not process_message:
            RayBackend.init_ray = _behind_token(RayBackend.init_ray)  # type: ignore[method-assign, assignment]
            RayBackend.terminate = _leaving_ray(RayBackend.terminate)  # type: ignore[method-assign, assignment]
            RayBackend.process_message = process_message  # type: ignore[method-assign]
        simulation_queue.install()


def _behind_token(start: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return ``RayBackend.init_ray`` as it starts Ray for this process alone."""

    def init_ray(self: Any, backend_config: Any) -> None:
        import ray

        closed = _closed(backend_config)
        if os.environ.get("RAY_ADDRESS") or ray.is_initialized() or os.environ.get(simulation_queue.PLAIN) == "1":
            start(self, closed)
        else:
            # Flower hands the workers their path in a runtime environment of Ray's, for which each is started twice,
            # and the ones that Ray starts beforehand are thrown away. Ray's processes inherit it from this one.
            os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
            ray.init(**{"include_dashboard": False} | closed.get("init_args", {}))

    return init_ray


def _leaving_ray(terminate: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return ``RayBackend.terminate`` as it leaves Ray's processes to ``fedshift run``, if that started this one.

    All is written by then. Ray ends them one after the other and waits for each; ``fedshift run`` ends all at once.
    """

    def leave(self: Any) -> None:
        if (
            os.environ.get("RAY_ADDRESS")
            or not os.environ.get(STATUS_FILE)
            or os.environ.get(simulation_queue.PLAIN) == "1"
        ):
            terminate(self)

    return leave


def _closed(backend_config: dict[str, Any]) -> dict[str, Any]:
    """Return how Ray is started here, so that nobody else can use it; a cluster that is there already has its own way.

    Every process of Ray inherits the token from this one's environment; calls without it are refused.
    """
    if os.environ.get("RAY_ADDRESS"):
        return backend_config
    if not os.environ.get(MODE):
        from ray._raylet import Config  # type: ignore[attr-defined]

        os.environ |= {MODE: "token", TOKEN: secrets.token_hex(32)}
        Config.initialize("")  # Ray has read its environment when it was imported
    if sys.platform != "linux":
        return backend_config
    return backend_config | {"init_args": {"_node_ip_address": LOOPBACK} | backend_config.get("init_args", {})}


def process_message(self: Any, message: Message, context: Context) -> tuple[Message, Context]:
    """Let a worker answer a message; if its process dies, another one does it again, from the same context.

    Takes the place of ``RayBackend.process_message``; ``self`` is the backend.

    Raises:
        RayError: If so many workers died of the message, which stops the run
            (``strategies.base``: an error that the node's app did not tell itself).
    """
    import ray
    from ray.exceptions import OutOfMemoryError, RayActorError, RayError, WorkerCrashedError

    pool = self.pool
    job = (self.app_fn, message, str(context.node_config["partition-id"]), context)
    died: RayError | None = None
    for _ in range(TRIES):
        future = pool.submit(lambda actor, *given: actor.run.remote(*given), job)
        try:
            _, reply, updated = ray.get(future)
        except (RayActorError, WorkerCrashedError, OutOfMemoryError) as error:
            died = error
            del pool._future_to_actor[future]
            pool.pool.append(pool.create_actor_fn())
            log.warning(
                "a worker of the simulation died; another one does its work again", extra={"event": "worker_died"}
            )
        except BaseException:
            pool.add_actor_back_to_pool(future)
            raise
        else:
            pool.add_actor_back_to_pool(future)
            return reply, updated
    assert died is not None  # or one of them had answered
    raise died
