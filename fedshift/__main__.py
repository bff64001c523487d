"""``python -m fedshift``: the command, by the interpreter that it is to run with."""

from fedshift import main

main()
