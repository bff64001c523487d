"""What ``--help`` shows besides each command's own text: panels and examples; and options that are really keys."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import typer
from typer.core import TyperGroup

#: The panels of ``fedshift --help`` in their order, each with its commands in theirs.
PANELS: Mapping[str, Sequence[str]] = {
    "Run": ("run", "sweep", "tune", "rescore", "evaluate", "status"),
    "Compare": ("compare", "claims", "report", "costs"),
    "Your data and methods": ("init", "prepare", "preview", "cache", "new-method", "new-plugin"),
    "Deploy": (
        "deploy-demo", "export", "superlink", "supernode", "credentials", "policy", "site", "save", "save-node",
        "predict",
    ),
    "Look up": (
        "methods", "experiments", "datasets", "models", "adaptations", "modules", "papers", "cite", "keys", "doctor",
        "app-dir", "version",
    ),
}  # fmt: skip
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}

_NODE = '--superlink HOST:9092 --node-config \'domain="north" data-dir="/images"\''
#: Two examples of each command. Square brackets would be read as colours.
EXAMPLES: Mapping[str, tuple[str, str]] = {
    "run": ("run handwritten method=i2pfl rounds=10 seed=1", "run handwritten engine=inline --json"),
    "sweep": (
        "sweep handwritten method=fedavg,i2pfl seed=0,1,2 engine=inline",
        "sweep handwritten method=fedavg seed=0,1 engine=inline --list",
    ),
    "tune": (
        "tune handwritten method=fedavg,i2pfl budget=20 seed=0,1,2", "tune handwritten method=fedprox budget=8 jobs=2",
    ),
    "rescore": ("rescore runs/FOLDER shift.name=corruption shift.severity=1,3,5", "rescore runs adapt.name=none,tent"),
    "evaluate": ("evaluate MODEL data-dir=MY_IMAGES", "evaluate MODEL --site hospital --json"),
    "status": ("status", "status runs/FOLDER --watch"),
    "compare": ("compare runs --html table.html", "compare runs --score balanced_accuracy --markdown"),
    "claims": ("claims runs", "claims runs --comparable --markdown"),
    "report": ("report runs/FOLDER", "report runs/FOLDER images=all node=0"),
    "costs": ("costs fedavg i2pfl handwritten", "costs fedavg f2dc handwritten nodes=4 --markdown"),
    "init": ("init mine data-dir=MY_IMAGES", "init mine data-dir=MY_IMAGES dataset.test_share=0.3"),
    "prepare": ("prepare mine/mine.yaml", "prepare pacs data-dir=PACS --json"),
    "preview": ("preview handwritten -o sheet.png", "preview pacs data-dir=PACS -o sheet.png --per-class 4"),
    "cache list": ("cache list", "cache list --json"),
    "cache verify": ("cache verify", "cache verify 'pacs*'"),
    "cache delete": ("cache delete 'pacs*'", "cache delete --features --unused 30"),
    "new-method": ("new-method my-method", "new-method my-method -o packages/my-method"),
    "new-plugin": ("new-plugin my-method", "new-plugin my-method -o plugins/my-method"),
    "deploy-demo": ("deploy-demo", "deploy-demo handwritten rounds=2 method=i2pfl"),
    "export": ("export handwritten nodes=4 -o nodes", "export mine/mine.yaml --compose -o nodes"),
    "superlink": ("superlink --credentials DIR", "superlink --credentials DIR --host 10.0.0.5 --port 9092"),
    "supernode": (
        f"supernode --root-certificates ca.crt {_NODE}", f"supernode --policy policy.yaml {_NODE}",
    ),
    "credentials authority": ("credentials authority keys", "credentials authority /home/fed/keys"),
    "credentials server": ("credentials server keys --host fed.org", "credentials server keys --days 90"),
    "credentials node": ("credentials node keys north", "credentials node keys south"),
    "policy init": ("policy init policy.yaml", "policy init policy.yaml --from open"),
    "policy check": ("policy check policy.yaml", "policy check strict"),
    "policy explain": ("policy explain policy.yaml", "policy explain"),
    "site log": ("site log", "site log NODE --round 3 --json"),
    "site stop": ("site stop NODE", "site stop NODE --undo"),
    "site report": ("site report NODE", "site report NODE --data-dir /images -o report.html"),
    "site status": ("site status", "site status --json"),
    "save": ("save runs/FOLDER", "save runs/FOLDER --format onnx -o model"),
    "save-node": ("save-node MODEL", "save-node MODEL --node NODE -o mine"),
    "predict": ("predict MODEL image.png", "predict MODEL images --csv scores.csv"),
    "methods": ("methods", "methods i2pfl"),
    "experiments": ("experiments", "experiments handwritten"),
    "datasets": ("datasets", "datasets pacs"),
    "models": ("models", "models resnet10 cnn --markdown"),
    "adaptations": ("adaptations", "run handwritten method=fedprox adapt.name=finetune"),
    "modules": ("modules", "run handwritten method=fedavg modules=f2dc"),
    "papers": ("papers", "compare runs --paper f2dc.table1b"),
    "cite": ("cite runs", "cite --method fpl,f2dc --dataset pacs"),
    "keys": ("keys", "keys train.lr"),
    "doctor": ("doctor", "doctor --json"),
    "app-dir": ("app-dir", "run handwritten --dry-run"),
    "version": ("version", "version --bundle"),
}  # fmt: skip


class Commands(TyperGroup):
    """The commands in the order of their panels; an option that is really a key is answered with the key."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, those of a panel together."""
        order = list(PANEL_OF)
        return sorted(self.commands, key=lambda name: order.index(name) if name in PANEL_OF else len(order))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and its arguments; keep these for a hint."""
        found = super().resolve_command(ctx, args)
        ctx.meta["fedshift.typed"] = (str(found[0]), *found[2])  # the parser empties the list
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command; say which key a wrong option is."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            command, *typed = ctx.meta.get("fedshift.typed", ("",))
            if not (said := hint(command, error.option_name, typed)):
                raise
            known = f"{error.message.rstrip('.')}. {said}"
            raise click.NoSuchOption(error.option_name, known, None, error.ctx) from None


def hint(command: str, option: str, typed: Sequence[str]) -> str:
    """Return the key that an unknown option is, as it is typed; empty where it is none that the command takes.

    Args:
        command: Its first word, such as ``run``.
        option: Such as ``--rounds``.
        typed: The arguments of the command.
    """
    key = next((key for key in _keys(option.lstrip("-")) if _takes(command, key)), "")
    if not key:
        return ""
    values = {word.partition("=")[0]: word.partition("=")[2] for word in typed if "=" in word}
    value = values.get(option, "")
    if option in typed and typed.index(option) + 1 < len(typed):
        value = typed[typed.index(option) + 1]
    return f"It is a key: use {key}={value or 'VALUE'}"


def _keys(word: str) -> Iterator[str]:
    """Yield the keys of a run that a word may be, whole or by its last part."""
    from fedshift_app.config import dotted_keys  # here: pydantic, which a right call may do without
    from fedshift_app.config.arguments import LAUNCH_KEYS
    from fedshift_app.config.resolving import FLAT_KEYS

    flat, dotted = word.replace("_", "-"), word.replace("-", "_")
    if flat in (*FLAT_KEYS, *LAUNCH_KEYS):
        yield flat
    yield from (key for key in dotted_keys.known() if dotted in (key, key.rpartition(".")[2]))


def _takes(command: str, key: str) -> bool:
    """Tell whether a command takes a key of a run as ``KEY=VALUE``; most take none.

    Each case imports what refuses the other keys, which a right call does without.
    """
    if command in ("run", "sweep", "tune"):
        return True
    if command == "rescore":
        from fedshift.lab.grid.rescore.keys import OWN, may_differ

        return key in OWN or may_differ(key)
    if command == "evaluate":
        from fedshift.lab.grid.evaluate.keys import allowed

        return allowed(key)
    if command == "costs":
        from fedshift.lab.grid.costs.command import REFUSED

        return key not in REFUSED
    if command == "deploy-demo":
        from fedshift.site.deploy.demo import REFUSED as LEFT_OUT

        return key not in LEFT_OUT
    if command == "export":
        from fedshift_app.config.arguments import LAUNCH_KEYS

        return key == "nodes" or key not in LAUNCH_KEYS
    if command == "init":
        from fedshift.data.init import TAKEN

        return key in ("data-dir", *TAKEN)
    if command in ("prepare", "preview"):  # of an experiment also others
        return key == "data-dir" or key.startswith("dataset.")
    return key in {"report": ("data-dir",), "status": ("output-dir",)}.get(command, ())


def arrange(app: typer.Typer) -> None:
    """Give each command of the app its panel and its examples."""
    for name, command in _commands(app, ""):
        command.rich_help_panel = PANEL_OF.get(name, command.rich_help_panel)
        if name in EXAMPLES:
            lines = (f"fedshift {example}" for example in EXAMPLES[name])
            command.epilog = "\n\n".join(["Examples:", *lines])
    for group in _groups(app):
        group.rich_help_panel = PANEL_OF.get(str(group.name), group.rich_help_panel)


def _groups(app: typer.Typer) -> Iterator[Any]:
    """Yield the groups of commands that have a name, also those of parts of the app."""
    for group in app.registered_groups:
        if isinstance(group.name, str):
            yield group
        elif group.typer_instance is not None:
            yield from _groups(group.typer_instance)


def _commands(app: typer.Typer, above: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands of an app with their full names, those of its parts and groups too."""
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "").replace("_", "-")
        yield above + name, command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(
                group.typer_instance, f"{above}{group.name} " if isinstance(group.name, str) else above
            )
