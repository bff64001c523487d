"""``python -m fedshift.cli``: the command."""

from fedshift.cli import main

main()
