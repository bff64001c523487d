"""What the exit code of the ``fedshift`` command means; typer itself exits with 2 where it is called wrongly."""

OK = 0
FAILED = 1  # a mistake of the user, or a run that failed: told in a line; of `fedshift status`: it cannot tell
STOPPED_SHORT = 3  # only of `fedshift status`: the run failed or was interrupted
DEGRADED = 4  # a simulated run went to its end, but did without a node that was not at fault
PARTLY_DRAWN = 5  # only of `fedshift report`: the page is there, without the figures that are told
IN_USE = 75  # of one run of a sweep: another process has it, or its folder; as sysexits.h has it: try again later
REFUSED = 78  # only of a run that a sweep or a search starts: its configuration or data are refused (EX_CONFIG)
HANGUP = 129  # 128 + SIGHUP, as shells have it: the terminal was closed
CTRL_C = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM

STOPPED_BY = {
    HANGUP: "stopped by SIGHUP (its terminal was closed)",
    CTRL_C: "stopped by Ctrl-C",
    TERMINATED: "stopped by SIGTERM",
}
