"""Environment variables for messages between FedShift's processes. Imports nothing, as all processes read it."""

#: The file for the outcome of the run, which ``fedshift run`` reads.
STATUS_FILE = "FEDSHIFT_STATUS_FILE"
#: A line that a simulation's ServerApp prints, where STATUS_FILE is set, once all is written; nobody sees it.
ALL_WRITTEN = "fedshift: all is written"
#: The command that the user typed.
COMMAND = "FEDSHIFT_COMMAND"
#: The commit of the checkout that ``fedshift run`` belongs to, see ``fedshift_app.run.versions.commit``.
COMMIT = "FEDSHIFT_COMMIT"
#: Flower's own: it reports usage to its makers unless this is 0. FedShift's commands set it to 0 by default.
TELEMETRY = "FLWR_TELEMETRY_ENABLED"
#: Set if ``fedshift run`` shows a table of the run in the terminal: the lines of rounds are then not printed.
LIVE = "FEDSHIFT_LIVE"
#: The folder that marks which warnings the processes of a command have shown, see ``fedshift_core.said_once``.
SAID = "FEDSHIFT_SAID"
#: The process of a sweep or a search that started this run.
SWEEP_PROCESS = "FEDSHIFT_SWEEP_PROCESS"
#: CPU threads of a simulated node, set by ``fedshift run cpus-per-client=N``; by default one, whatever Ray gives.
THREADS = "FEDSHIFT_THREADS"
#: 1 in the environment of a SuperNode whose owner wants the last received weights kept (``supernode --keep-model``).
KEEP_MODEL = "FEDSHIFT_KEEP_MODEL"
#: The socket of the run's fork server, see ``fedshift.run.launch.fork_server``.
FORK_SERVER = "FEDSHIFT_FORK_SERVER"
#: The program that Ray starts in the place of its own worker, which it becomes; set by ``fedshift run``.
RAY_WORKER = "FEDSHIFT_RAY_WORKER"
#: 1 leaves Flower's simulation as it is, for comparisons.
PLAIN_FLOWER = "FEDSHIFT_PLAIN_FLOWER"
