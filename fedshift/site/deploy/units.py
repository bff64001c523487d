"""``fedshift superlink --systemd`` and ``fedshift supernode --systemd``: the hardened unit that runs the command.

All that the service writes lies in the home of its user, which is the unit's ``StateDirectory``: keys, database, runs,
the node's state and caches. Commands that this user types (``sudo -iu fedshift``) find the same folders.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from fedshift.run.launch import processes
from fedshift.run.texts import filled
from fedshift.site.deploy import supernode
from fedshift.site.deploy.supernode import NODE_CONFIG
from fedshift_app.node import chained_log, state_folder
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

USER = "fedshift"
HOME = f"/var/lib/{USER}"
STATE = f"{HOME}/.local/state/fedshift"  # as ``state_folder.state_dir`` has it for this user
DATA_DIR = "data-dir"  # of a node's configuration
_PLAIN = re.compile(r"[\w@+=:,./-]+")  # a word that systemd takes as it is


def of_supernode(options: Sequence[str]) -> str:
    """Return the unit of a SuperNode with these options of ``fedshift supernode``.

    Raises:
        ConfigError: If the folder of its images is not absolute, or an option is given twice or cannot be printed.
    """
    config = supernode.node_config(options)
    images, folder = str(config.get(DATA_DIR, "")), state_folder.own_folder(config)
    if images and not PurePath(images).is_absolute():
        raise ConfigError(f"{NODE_CONFIG}: {DATA_DIR}={as_found(images)}: --systemd needs an absolute path")
    off = "" if folder is None else f"{STATE}/{folder.name}/{chained_log.OFF_FILE}".replace("%", "%%")
    return rendered("supernode", options, _word(images) if images else "", off)


def rendered(name: str, options: Sequence[str], images: str = "", off: str = "") -> str:
    """Return the unit of a command with these options.

    Args:
        name: The command: ``superlink`` or ``supernode``.
        options: Its options.
        images: A node's folder of images.
        off: The file that says that a node is switched off.

    Raises:
        ConfigError: If an option cannot be printed.
    """
    if wrong := [option for option in options if not option.isprintable()]:
        raise ConfigError(f"--systemd: {as_found(wrong[0])} has characters that cannot be printed")
    here = [str(Path(option).absolute()) if Path(option).is_file() else option for option in options]
    words = " ".join(_word(word).replace("$", "$$") for word in [processes.command("fedshift"), name, *here])
    return filled(
        Path(__file__).with_name("unit.service.j2"),
        name=name,
        words=words,
        user=USER,
        home=HOME,
        images=images,
        off=off,
    )


def _word(text: str) -> str:
    """Return a word as systemd reads it: in quotes where it needs them, and nothing of it a specifier."""
    escaped = text.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return text if _PLAIN.fullmatch(text) else f'"{escaped}"'
