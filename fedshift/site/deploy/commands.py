"""``fedshift export``, ``deploy-demo``, ``superlink``, ``supernode``, ``policy``, ``credentials``: real nodes."""

from pathlib import Path
from typing import Annotated

import typer

from fedshift.run.catalog import completion
from fedshift.run.options import Bounds, command
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, shown

app = typer.Typer()
credentials_app = typer.Typer(no_args_is_help=True, help="Make the certificates and keys of a deployment.")
app.add_typer(credentials_app, name="credentials")
policy_app = typer.Typer(no_args_is_help=True, help="Write, check and explain what the owner of a node allows.")
app.add_typer(policy_app, name="policy")


@command(app)
def export(
    experiment: Annotated[str, completion.experiments],
    arguments: list[str] | None = None,
    *,
    output: Path = Path("nodes"),
    as_compose: bool = False,
) -> None:
    """Write each node's images into a folder of its own, for SuperNodes; prints how to start them.

    Args:
        experiment: See `fedshift experiments`.
        arguments ([KEY=VALUE ...]): Keys, see above.
        output (-o, --output): Folder to make.
        as_compose: Also write compose.own.yaml: these nodes and a SuperLink in containers.

    Examples:
        fedshift export handwritten nodes=4 -o nodes
        fedshift export mine/mine.yaml --compose -o nodes
    """
    from fedshift.site.deploy import exporting
    from fedshift_app.config import resolving as configuration
    from fedshift_app.config.arguments import parse_arguments

    flat, launch = parse_arguments([experiment, *(arguments or [])])
    for key in launch:
        if key != "nodes":
            raise ConfigError(f"{key}: export starts nothing; it accepts nodes=N and the keys of a run's configuration")
    config = configuration.resolve(flat)
    if as_compose:
        from fedshift.site.deploy import compose

        compose.check(config)
    folders = exporting.export(config, launch.get("nodes"), output)
    if as_compose:
        typer.echo(compose.after(compose.write(config, folders, folders[0].path.parent)))
        return
    for folder in folders:
        typer.echo(exporting.supernode_command(folder))


@command(app)
def deploy_demo(arguments: Annotated[list[str] | None, completion.arguments] = None, *, insecure: bool = False) -> None:
    """Run an experiment on a SuperLink and SuperNodes on this machine's loopback, with TLS and node keys.

    Without EXPERIMENT it is `handwritten`, four SuperNodes, four rounds unless rounds=N; any other runs its own rounds,
    on as many SuperNodes as it deals (allocation.counts), else one per domain, at most 16. Keys of `fedshift run`, but
    for resume, report and how to launch.

    Args:
        arguments ([EXPERIMENT] [KEY=VALUE ...]): Keys, see above.
        insecure: Without TLS and keys.

    Examples:
        fedshift deploy-demo
        fedshift deploy-demo handwritten rounds=2 method=i2pfl
    """
    from fedshift.site.deploy import demo as deploy_demo
    from fedshift_app.run import status

    folder = deploy_demo.demo(deploy_demo.read(arguments or []), secure=not insecure)
    typer.echo(f"run folder: {shown(folder, WHOLE_PATH)}")
    status.exit_if_degraded(folder)


@command(app, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def superlink(
    context: typer.Context,
    *,
    folder: Path | None = None,
    insecure: bool = False,
    host: str = "0.0.0.0",
    port: Annotated[int, Bounds(1, 65535)] = 8000,
    any_user: bool = False,
    systemd: bool = False,
) -> None:
    """Run Flower's SuperLink with TLS and node keys; over the network it serves SuperNodes only.

    Runs are submitted and keys are registered from the SuperLink's own machine, by the user who runs it.
    Other options are those of `flower-superlink`, such as --database FILE.

    Args:
        context: Of the terminal.
        folder (--credentials): Folder of `fedshift credentials`: TLS and node keys.
        insecure: Without TLS and keys: anybody may join.
        host: Address to listen on.
        port: Port of all APIs.
        any_user: Other users of this machine may submit runs and register keys, too.
        systemd: Start nothing, print the hardened unit that runs this command (docs/deploy/operation.md).

    Examples:
        fedshift superlink --credentials DIR
        fedshift superlink --credentials DIR --host 10.0.0.5 --port 9092
    """
    from fedshift.run.launch.credentials import Credentials
    from fedshift.run.launch.superlink import AnyUser, OnlyFleet, serve

    if insecure == (folder is not None):
        raise ConfigError("give either --credentials DIR, for TLS and node keys, or --insecure, for neither")
    if systemd:
        from fedshift.site.deploy import units

        keys = ["--insecure"] if folder is None else ["--credentials", str(folder.resolve())]
        more = ["--any-user"] if any_user else []
        typer.echo(units.rendered("superlink", [*keys, "--host", host, "--port", str(port), *more, *context.args]))
        return
    security = ["--insecure"] if folder is None else Credentials(folder.resolve()).superlink_options()
    serve([*security, "--host", host, "--port", str(port), *context.args], AnyUser if any_user else OnlyFleet)


@command(app, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def supernode(
    context: typer.Context, *, cold: bool = False, keep_model: bool = False, source: str = "", systemd: bool = False
) -> None:
    """Run Flower's SuperNode, which looks for messages sooner and forks their processes from a warm one.

    It answers with the FedShift that is installed here, never with the code that a run brings. It does what its owner's
    policy allows (docs/deploy/policy.md), by default that of `fedshift policy explain strict`.
    All other options are those of `flower-supernode`, such as --superlink HOST:PORT, --root-certificates FILE,
    --auth-supernode-private-key FILE and --node-config; so are the numbers.

    Args:
        context: Of the terminal.
        cold: A new process for each message: slower, but uses less memory.
        keep_model: Keep the last weights received, for `fedshift site report`.
        source (--policy FILE): What you allow: a file, strict, or open (demo data).
        systemd: Start nothing, print the hardened unit that runs this command (docs/deploy/operation.md).

    Examples:
        fedshift supernode --root-certificates ca.crt --superlink HOST:9092
            --node-config 'domain="north" data-dir="/images"'
        fedshift supernode --policy policy.yaml --superlink HOST:9092 --node-config 'domain="north" data-dir="/images"'
    """
    from fedshift.site.deploy import policies
    from fedshift.site.deploy import supernode as node
    from fedshift_app.node import policy

    given = context.args
    if systemd:
        from fedshift.site.deploy import units

        chosen = {"--cold": cold, "--keep-model": keep_model}
        flags = [name for name, on in chosen.items() if on] + (["--policy", policies.typed(source)] if source else [])
        typer.echo(units.of_supernode([*flags, *given]))
        return
    if source or policy.POLICY not in node.node_config(given):
        loaded = policies.load(source or policy.STRICT)
        given = policies.with_policy(given, loaded)
        typer.echo(f"policy: {loaded}{'' if source else '; name another with --policy'}", err=True)
    node.serve(given, warm=not cold, keep_model=keep_model)


@command(policy_app, "init")
def policy_init(file: Path, *, start: str = "strict") -> None:
    """Write a policy to begin with, each key with what it means; only you can read it.

    Args:
        file: File to write; it must not exist.
        start (--from NAME): Begin with strict or open.

    Examples:
        fedshift policy init policy.yaml
        fedshift policy init policy.yaml --from open
    """
    from fedshift.site.deploy import policies
    from fedshift_app.node.policy import BUILT_IN
    from fedshift_core import atomic_io

    if start not in BUILT_IN:
        raise ConfigError(f"--from {start}: there are {', '.join(BUILT_IN)}")
    if file.exists():
        raise ConfigError(f"{shown(file, WHOLE_PATH)} exists, and is not overwritten")
    atomic_io.write_durably(file, policies.template(BUILT_IN[start]).encode(), private=True)
    print_files([file])


@command(policy_app, "check", to="fedshift.site.deploy.policies:checked")
def policy_check(source: str) -> None:
    """Check a policy as a node does: its keys, and that only you can write it; prints its SHA-256.

    Args:
        source (FILE): A policy.

    Examples:
        fedshift policy check policy.yaml
        fedshift policy check strict
    """


@command(policy_app, "explain", to="fedshift.site.deploy.policies:explained")
def policy_explain(source: str = "strict") -> None:
    """Say in words what a policy allows, and what this user's nodes have spent of its budget.

    Args:
        source ([FILE]): A policy; by default strict.

    Examples:
        fedshift policy explain policy.yaml
        fedshift policy explain
    """


@command(credentials_app, "authority")
def credentials_authority(folder: Path) -> None:
    """Make the CA of a federation: ca.key, which stays with you, and ca.crt, which everybody gets.

    Args:
        folder: Folder to write to.

    Examples:
        fedshift credentials authority keys
        fedshift credentials authority /home/fed/keys
    """
    from fedshift.run.launch import credentials

    print_files(credentials.make_authority(folder.resolve()))


@command(credentials_app, "server")
def credentials_server(
    folder: Path, *, host: list[str] | None = None, days: Annotated[int, Bounds(1, 3650)] = 365
) -> None:
    """Make the SuperLink's certificate: server.crt and server.key, signed by the CA.

    Args:
        folder: The folder with ca.key and ca.crt.
        host: Name or IP address of the SuperLink; repeat for each one.
        days: How long the certificate is valid.

    Examples:
        fedshift credentials server keys --host fed.org
        fedshift credentials server keys --days 90
    """
    from fedshift.run.launch import credentials

    print_files(credentials.make_server(folder.resolve(), host or [], days))


@command(credentials_app, "node")
def credentials_node(folder: Path, name: str) -> None:
    """Make a SuperNode's key pair: NAME.key, which stays on the node, and NAME.pub, which is registered.

    Args:
        folder: Folder to write to.
        name: The node's name.

    Examples:
        fedshift credentials node keys north
        fedshift credentials node keys south
    """
    from fedshift.run.launch import credentials

    print_files(credentials.make_node(folder.resolve(), name))


def print_files(paths: list[Path]) -> None:
    """Print what was written."""
    for file in paths:
        typer.echo(f"wrote {shown(file, WHOLE_PATH)}")
