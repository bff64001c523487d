"""The entry point of the command: Ctrl-C before the command itself is imported."""

from support import ROOT, ran

from fedshift_app.run import exit_codes

#: Ctrl-C arrives while `fedshift.cli` is looked for.
INTERRUPTED = """
import os, signal, sys
import fedshift

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "fedshift.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
fedshift.main()
"""


def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback() -> None:
    ended = ran("-c", INTERRUPTED, cwd=ROOT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (exit_codes.CTRL_C, "", "")
