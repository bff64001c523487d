"""``fedshift compare`` and ``claims``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedshift import options
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, shown

if TYPE_CHECKING:
    from fedshift.compare.sites import SiteTable

app = typer.Typer()


@app.command("compare")
def compare(
    runs: Annotated[list[Path], options.path_argument("Run folders, or folders that hold some.", "RUN...")],
    paper: Annotated[str, typer.Option(help="A printed table to compare with, see `fedshift papers`.")] = "",
    score: Annotated[
        str,
        typer.Option(
            help="last5, final, best, validation, balanced_accuracy, macro_f1, auc, ece, bn, bn=WAY or clients."
        ),
    ] = "last5",
    scored: Annotated[
        str, typer.Option(help="global or personal: only methods that score these models, and FedAvg.")
    ] = "",
    unseen: Annotated[
        bool,
        typer.Option("--unseen", help="Held-out domains alone: runs that leave out one after the other are one row."),
    ] = False,
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="Runs that differ in more than method and seed: in groups.")
    ] = False,
    costs: Annotated[
        Path | None, options.path_option("What `fedshift costs ... --json` printed: figures of accuracy against costs.")
    ] = None,
    sites: Annotated[
        str,
        typer.Option(
            help="A figure of each site by method, with 95 % intervals: accuracy, balanced_accuracy, auroc, auprc, "
            "brier, ece, or of a class sensitivity:CLASS, specificity:CLASS, auroc:CLASS, auprc:CLASS."
        ),
    ] = "",
    markdown: options.Markdown = False,
    as_json: options.Json = False,
    csv: Annotated[Path | None, options.path_option("A CSV file to write.")] = None,
    html: Annotated[Path | None, options.path_option("A page to write.")] = None,
    keep: Annotated[
        Path | None, options.path_option("A folder for one small JSON file per run, which `compare` reads as well.")
    ] = None,
) -> None:
    """Compare finished runs: methods x domains, mean and spread over seeds, difference to FedAvg."""
    from fedshift import compare as compare_module

    form = options.table_form(markdown=markdown, as_json=as_json)
    result: compare_module.Comparison | SiteTable
    if sites:
        _check_alone({"--paper": paper, "--costs": costs, "--html": html, "--score": score != "last5"})
        result = compare_module.by_site(runs, sites, allow_different=allow_different, scored=scored, held_out=unseen)
        unreadable = result.unreadable
        page = None
    else:
        result = compare_module.compare(
            runs, paper=paper, score=score, allow_different=allow_different, costs=costs, scored=scored, held_out=unseen
        )
        unreadable, page = result.numbers.unreadable, result.html
    typer.echo(form(result))
    contents: list[tuple[Path | None, Callable[[Path], str] | None]] = [(csv, lambda _: result.csv()), (html, page)]
    for file, content in contents:
        if file is not None and content is not None:
            try:
                file.write_text(content(file), encoding="utf-8", errors="replace")  # a folder's name may be no UTF-8
            except OSError as error:
                raise ConfigError(f"cannot write {shown(file)}: {error.strerror}") from None
            typer.echo(f"wrote {shown(file.resolve(), WHOLE_PATH)}", err=markdown or as_json)
    if keep is not None:
        files = compare_module.keep(runs, keep)
        typer.echo(f"wrote {len(files)} files into {shown(keep.resolve(), WHOLE_PATH)}", err=markdown or as_json)
    _end(unreadable)


@app.command("claims")
def claims(
    folders: Annotated[
        list[Path], options.path_argument("Folders of runs that compare, or folders that hold such folders.")
    ],
    score: Annotated[
        str, typer.Option(help="Which accuracies: last5, final, bn=WAY, ...; as `compare` has it.")
    ] = "last5",
    own: Annotated[bool, typer.Option("--own", help="Show the papers' own methods alone.")] = False,
    comparable: Annotated[bool, typer.Option("--comparable", help="Show no rows that do not compare.")] = False,
    markdown: options.Markdown = False,
    as_json: options.Json = False,
) -> None:
    """Hold runs against each gain over FedAvg that the papers print: seen, not seen, reversed or not comparable."""
    from fedshift.compare import claims as claiming

    form = options.table_form(markdown=markdown, as_json=as_json)
    result = replace(claiming.claims(folders, score=score), own=own, comparable=comparable)
    typer.echo(form(result))
    _end(result.unreadable)


def _check_alone(others: Mapping[str, object]) -> None:
    """Refuse options that the table of sites does not have.

    Raises:
        ConfigError: With the first of them that is given.
    """
    given = next((name for name, value in others.items() if value), None)
    if given is not None:
        raise ConfigError(f"--sites and {given}: the table of sites has no such part; give one of the two")


def _end(unreadable: Sequence[str]) -> None:
    """Raise exit code 1 if runs were left out because they cannot be read.

    The printed text names them.

    Raises:
        SystemExit: If runs were left out.
    """
    if unreadable:
        typer.echo(f"error: runs that cannot be read were left out: {len(unreadable)}", err=True)
        raise SystemExit(exit_codes.FAILED)
