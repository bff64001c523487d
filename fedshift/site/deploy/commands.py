"""``fedshift export``, ``deploy-demo``, ``superlink``, ``supernode``, ``policy``, ``credentials``: real nodes."""

from pathlib import Path
from typing import Annotated

import typer

from fedshift.run import options
from fedshift.run.catalog import completion
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, shown

app = typer.Typer()
credentials_app = typer.Typer(no_args_is_help=True, help="Make the certificates and keys of a deployment.")
app.add_typer(credentials_app, name="credentials")
policy_app = typer.Typer(no_args_is_help=True, help="Write, check and explain what the owner of a node allows.")
app.add_typer(policy_app, name="policy")


@app.command()
def export(
    experiment: Annotated[
        str, typer.Argument(help="See `fedshift experiments`.", autocompletion=completion.experiments)
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE ...]")] = None,
    output: Annotated[Path, options.path_option("Folder to make.", "-o", "--output")] = Path("nodes"),
    as_compose: Annotated[
        bool, typer.Option("--compose", help="Also write compose.own.yaml: these nodes and a SuperLink in containers.")
    ] = False,
) -> None:
    """Write each node's images into a folder of its own, for SuperNodes; prints how to start them."""
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


@app.command("deploy-demo")
def deploy_demo(
    arguments: Annotated[list[str] | None, options.arguments("[EXPERIMENT] [KEY=VALUE ...]")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys.")] = False,
) -> None:
    """Run an experiment on a SuperLink and SuperNodes on this machine's loopback, with TLS and node keys.

    Without EXPERIMENT it is `handwritten`, four SuperNodes, four rounds unless rounds=N; any other runs its own rounds,
    on as many SuperNodes as it deals (allocation.counts), else one per domain, at most 16. Keys of `fedshift run`, but
    for resume, report and how to launch.
    """
    from fedshift.site.deploy import demo as deploy_demo
    from fedshift_app.run import status

    folder = deploy_demo.demo(deploy_demo.read(arguments or []), secure=not insecure)
    typer.echo(f"run folder: {shown(folder, WHOLE_PATH)}")
    status.exit_if_degraded(folder)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def superlink(
    context: typer.Context,
    folder: Annotated[
        Path | None, options.path_option("Folder of `fedshift credentials`: TLS and node keys.", "--credentials")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys: anybody may join.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of all APIs.")] = 8000,
    any_user: Annotated[
        bool, typer.Option("--any-user", help="Other users of this machine may submit runs and register keys, too.")
    ] = False,
) -> None:
    """Run Flower's SuperLink with TLS and node keys; over the network it serves SuperNodes only.

    Runs are submitted and keys are registered from the SuperLink's own machine, by the user who runs it.
    Other options are those of `flower-superlink`, such as --database FILE.
    """
    from fedshift.run.launch.credentials import Credentials
    from fedshift.run.launch.superlink import AnyUser, OnlyFleet, serve

    if insecure == (folder is not None):
        raise ConfigError("give either --credentials DIR, for TLS and node keys, or --insecure, for neither")
    security = ["--insecure"] if folder is None else Credentials(folder.resolve()).superlink_options()
    serve([*security, "--host", host, "--port", str(port), *context.args], AnyUser if any_user else OnlyFleet)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def supernode(
    context: typer.Context,
    cold: Annotated[
        bool, typer.Option("--cold", help="A new process for each message: slower, but uses less memory.")
    ] = False,
    keep_model: Annotated[
        bool, typer.Option("--keep-model", help="Keep the last weights received, for `fedshift site report`.")
    ] = False,
    source: Annotated[
        str, typer.Option("--policy", metavar="FILE", help="What you allow: a file, strict, or open (demo data).")
    ] = "",
) -> None:
    """Run Flower's SuperNode, which looks for messages sooner and forks their processes from a warm one.

    It answers with the FedShift that is installed here, never with the code that a run brings. It does what its owner's
    policy allows (docs/deploy/policy.md), by default that of `fedshift policy explain strict`.
    All other options are those of `flower-supernode`, such as --superlink HOST:PORT, --root-certificates FILE,
    --auth-supernode-private-key FILE and --node-config; so are the numbers.
    """
    from fedshift.site.deploy import policies
    from fedshift.site.deploy import supernode as node
    from fedshift_app.node import policy

    given = context.args
    if source or policy.POLICY not in node.node_config(given):
        loaded = policy.load(policies.typed(source or policy.STRICT))
        given = policies.with_policy(given, loaded)
        typer.echo(f"policy: {loaded}{'' if source else '; name another with --policy'}", err=True)
    node.serve(given, warm=not cold, keep_model=keep_model)


@policy_app.command("init")
def policy_init(
    file: Annotated[Path, options.path_argument("File to write; it must not exist.")],
    start: Annotated[str, typer.Option("--from", metavar="NAME", help="Begin with strict or open.")] = "strict",
) -> None:
    """Write a policy to begin with, each key with what it means; only you can read it."""
    from fedshift.site.deploy import policies
    from fedshift_app.node.policy import BUILT_IN
    from fedshift_core import atomic_io

    if start not in BUILT_IN:
        raise ConfigError(f"--from {start}: there are {', '.join(BUILT_IN)}")
    if file.exists():
        raise ConfigError(f"{shown(file, WHOLE_PATH)} exists, and is not overwritten")
    atomic_io.write_durably(file, policies.template(BUILT_IN[start]).encode(), private=True)
    print_files([file])


@policy_app.command("check")
def policy_check(source: Annotated[str, typer.Argument(metavar="FILE", help="A policy.")]) -> None:
    """Check a policy as a node does: its keys, and that only you can write it; prints its SHA-256."""
    from fedshift.site.deploy import policies
    from fedshift_app.node import policy

    typer.echo(f"a policy: {policy.load(policies.typed(source))}")


@policy_app.command("explain")
def policy_explain(
    source: Annotated[str, typer.Argument(metavar="[FILE]", help="A policy; by default strict.")] = "strict",
) -> None:
    """Say in words what a policy allows, and what this user's nodes have spent of its budget."""
    from fedshift.site.deploy import policies
    from fedshift_app.node import policy

    for line in policies.explained(policy.load(policies.typed(source))):
        typer.echo(line)


@credentials_app.command("authority")
def credentials_authority(
    folder: Annotated[Path, options.path_argument("Folder to write to.")],
) -> None:
    """Make the CA of a federation: ca.key, which stays with you, and ca.crt, which everybody gets."""
    from fedshift.run.launch import credentials

    print_files(credentials.make_authority(folder.resolve()))


@credentials_app.command("server")
def credentials_server(
    folder: Annotated[Path, options.path_argument("The folder with ca.key and ca.crt.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or IP address of the SuperLink; repeat for each one.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificate is valid.")] = 365,
) -> None:
    """Make the SuperLink's certificate: server.crt and server.key, signed by the CA."""
    from fedshift.run.launch import credentials

    print_files(credentials.make_server(folder.resolve(), host or [], days))


@credentials_app.command("node")
def credentials_node(
    folder: Annotated[Path, options.path_argument("Folder to write to.")],
    name: Annotated[str, typer.Argument(help="The node's name.")],
) -> None:
    """Make a SuperNode's key pair: NAME.key, which stays on the node, and NAME.pub, which is registered."""
    from fedshift.run.launch import credentials

    print_files(credentials.make_node(folder.resolve(), name))


def print_files(paths: list[Path]) -> None:
    """Print what was written."""
    for file in paths:
        typer.echo(f"wrote {shown(file, WHOLE_PATH)}")
