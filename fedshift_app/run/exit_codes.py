"""Exit codes of the ``fedshift`` command, each of which keeps its meaning; typer itself exits with 2 for a wrong call.

``benchmarks/reference_pages.py`` makes docs/reference/exit-codes.md: it describes each for scripts.
"""

OK = 0
FAILED = 1  # a mistake of the user, or a failed run; of `fedshift status`: the state is unknown
WRONG_CALL = 2  # of typer, before anything is done
STOPPED_SHORT = 3  # only of `fedshift status`: the run failed or was interrupted
DEGRADED = 4  # a run completed, but lost a part: of a node, or rounds or images behind a number
PARTLY_DRAWN = 5  # only of `fedshift report`: the page lacks the figures that a message names
IN_USE = 75  # of one run of a sweep: another process holds it or its folder; sysexits.h: try again later
REFUSED = 78  # only of a run of a sweep or search: its configuration or data are refused (EX_CONFIG)
HANGUP = 129  # 128 + SIGHUP, as shells have it: the terminal was closed
CTRL_C = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM

STOPPED_BY = {
    HANGUP: "stopped by SIGHUP (its terminal was closed)",
    CTRL_C: "stopped by Ctrl-C",
    TERMINATED: "stopped by SIGTERM",
}
