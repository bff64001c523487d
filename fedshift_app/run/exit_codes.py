"""Exit codes of the ``fedshift`` command; typer itself exits with 2 for a wrong call."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Meaning:
    """What an exit code says to a script.

    Attributes:
        code: The code.
        commands: The commands that end with it.
        text: What has happened.
        next: What a script can do.
    """

    code: int
    commands: str
    text: str
    next: str


#: All exit codes. They are stable: a code keeps its meaning (the reference is made of this).
MEANINGS = (
    Meaning(OK, "all", "done", "go on"),
    Meaning(
        FAILED,
        "all",
        "a mistake in configuration, data or call, or a run that failed; one or two lines on standard "
        "error say what. Of `doctor`: problems. Of `status`: the state is unknown",
        "read the message",
    ),
    Meaning(WRONG_CALL, "all", "no such command or option, or an argument is missing; nothing was done", "`--help`"),
    Meaning(STOPPED_SHORT, "`status`", "the run failed or was interrupted", "`fedshift run resume=FOLDER`"),
    Meaning(
        DEGRADED,
        "`run`, `deploy-demo`, `evaluate`, `sweep`, `status`",
        "the run is complete, but lost a part: a node in some round, or rounds or images behind a number",
        "the last lines name it, so do `lost`, `unscored` and `missing_tests` in results.json",
    ),
    Meaning(PARTLY_DRAWN, "`report`", "the page is written, without the figures that messages name", "read them"),
    Meaning(IN_USE, "`sweep --in`", "another process has this run or its folder; nothing was done", "try again later"),
    Meaning(
        REFUSED,
        "a run that `sweep` or `tune` starts",
        "its configuration or data are refused, and would be again",
        "correct them",
    ),
    Meaning(HANGUP, "all", STOPPED_BY[HANGUP], "`fedshift run resume=FOLDER`"),
    Meaning(CTRL_C, "all", STOPPED_BY[CTRL_C], "`fedshift run resume=FOLDER`"),
    Meaning(TERMINATED, "all", STOPPED_BY[TERMINATED], "`fedshift run resume=FOLDER`"),
)
