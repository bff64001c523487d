"""Environment variables by which FedShift's processes tell each other something. Imports nothing: all of them look."""

#: The file where ``fedshift run`` wants to be told what became of the run.
STATUS_FILE = "FEDSHIFT_STATUS_FILE"
#: The command that was typed.
COMMAND = "FEDSHIFT_COMMAND"
#: The commit of the checkout that ``fedshift run`` belongs to, see ``folder.commit``.
COMMIT = "FEDSHIFT_COMMIT"
#: Flower's: it reports usage to its makers unless this is 0. FedShift's commands set it to 0 where nobody has set it.
TELEMETRY = "FLWR_TELEMETRY_ENABLED"
#: Set where ``fedshift run`` draws a table of the run in the terminal: the rounds' lines are not printed.
LIVE = "FEDSHIFT_LIVE"
#: The process of a sweep or a search that started this run.
SWEEP_PROCESS = "FEDSHIFT_SWEEP_PROCESS"
#: CPU threads of a simulated node, as ``fedshift run cpus-per-client=N`` says; by itself one, whatever Ray gives.
THREADS = "FEDSHIFT_THREADS"
