"""``fedshift compare`` and ``claims``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedshift.lab.tables.compare import DECIMALS, MOST_DECIMALS
from fedshift.run import options
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.plural import plural

if TYPE_CHECKING:
    from fedshift.lab.tables.compare import Comparison

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
            help="A metric of each site by method, with 95 % intervals: accuracy, balanced_accuracy, auroc, auprc, "
            "brier, ece, or of a class sensitivity:CLASS, specificity:CLASS, auroc:CLASS, auprc:CLASS."
        ),
    ] = "",
    columns: Annotated[
        str, typer.Option(help="Columns to print and their order, with commas: photo,sketch,AVG; empty for all.")
    ] = "",
    decimals: Annotated[int, typer.Option(min=0, max=MOST_DECIMALS, help="Decimals to print.")] = DECIMALS,
    markdown: options.Markdown = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX with booktabs, as papers have it.")] = False,
    caption: Annotated[str, typer.Option(help="With --latex: the caption, in LaTeX.")] = "",
    label: Annotated[str, typer.Option(help="With --latex: the label.")] = "",
    as_json: options.Json = False,
    csv: Annotated[Path | None, options.path_option("A CSV file to write: a line for each run and domain.")] = None,
    table_csv: Annotated[
        Path | None, options.path_option("A CSV file to write: a line for each row of the table.")
    ] = None,
    figures: Annotated[
        Path | None, options.path_option("A folder for all figures as PDF, SVG and PNG, and the curves as CSV.")
    ] = None,
    html: Annotated[Path | None, options.path_option("A page to write.")] = None,
    board: Annotated[
        Path | None,
        options.path_option("A page to write with a table for each set of runs that compare; chosen and sorted there."),
    ] = None,
    keep: Annotated[
        Path | None, options.path_option("A folder for one small JSON file per run, which `compare` reads as well.")
    ] = None,
) -> None:
    """Compare finished runs: methods x domains, mean and spread over seeds, difference to FedAvg."""
    from fedshift.lab.tables.compare import by_site as compare_sites
    from fedshift.lab.tables.compare import compare as compare_runs
    from fedshift.lab.tables.compare import keep as keep_runs

    form = options.table_form(markdown=markdown, as_json=as_json)
    _check_form(latex, markdown, as_json, {"caption": caption, "label": label}, columns, decimals)
    aside = markdown or as_json or latex
    of_one_table = {
        "--paper": paper, "--costs": costs, "--html": html, "--score": score != "last5", "--latex": latex,
        "--columns": columns, "--decimals": decimals != DECIMALS, "--table-csv": table_csv, "--figures": figures,
    }  # fmt: skip
    if board is not None:
        others = {
            "--sites": sites, "--scored": scored, "--unseen": unseen, "--allow-different": allow_different,
            "--markdown": markdown, "--json": as_json, "--csv": csv, "--keep": keep,
        }  # fmt: skip
        _check_alone("--board", "that page", of_one_table | others)
        _board(runs, board)
        return
    if sites:
        _check_alone("--sites", "the table of sites", of_one_table)
        by_site = compare_sites(runs, sites, allow_different=allow_different, scored=scored, held_out=unseen)
        unreadable = by_site.unreadable
        typer.echo(form(by_site))
        _write({csv: lambda: by_site.csv()}, aside)
    else:
        result = compare_runs(
            runs, paper=paper, score=score, allow_different=allow_different, costs=costs, scored=scored, held_out=unseen
        )
        unreadable = result.numbers.unreadable
        chosen = result.with_columns([name.strip() for name in columns.split(",")]) if columns else result
        table = _Printed(chosen, decimals, caption, label)
        typer.echo(table.latex() if latex else form(table))
        _write({csv: result.runs_csv, table_csv: result.csv, html: lambda: result.html(html)}, aside)
        if figures is not None:
            _wrote(result.figures(figures), figures, aside)
    if keep is not None:
        _wrote(keep_runs(runs, keep), keep, aside)
    _end(unreadable)


def _write(contents: Mapping[Path | None, Callable[[], str]], aside: bool) -> None:
    """Write the files that were asked for, and say so; ``aside`` on standard error.

    Raises:
        ConfigError: If one cannot be written.
    """
    for file, content in contents.items():
        if file is not None:
            try:
                file.write_text(content(), encoding="utf-8", errors="replace")  # a folder's name may be no UTF-8
            except OSError as error:
                raise ConfigError(f"cannot write {shown(file)}: {error.strerror}") from None
            typer.echo(f"wrote {shown(file.resolve(), WHOLE_PATH)}", err=aside)


def _wrote(files: Sequence[Path], folder: Path, aside: bool) -> None:
    typer.echo(f"wrote {plural(len(files), 'file')} into {shown(folder.resolve(), WHOLE_PATH)}", err=aside)


@dataclass(frozen=True)
class _Printed:
    """A comparison with the decimals, caption and label that were asked for."""

    comparison: "Comparison"
    decimals: int
    caption: str
    label: str

    def text(self) -> str:
        """Return aligned lines."""
        return self.comparison.text(decimals=self.decimals)

    def markdown(self) -> str:
        """Return a Markdown table."""
        return self.comparison.markdown(self.decimals)

    def latex(self) -> str:
        """Return a table of LaTeX."""
        return self.comparison.to_latex(decimals=self.decimals, caption=self.caption, label=self.label)

    def json(self) -> str:
        """Return all numbers."""
        return self.comparison.json()


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
    """Compare runs with each gain over FedAvg that papers print: the same sign, the same size, or not."""
    from fedshift.lab.tables.compare import claims as claiming

    form = options.table_form(markdown=markdown, as_json=as_json)
    result = replace(claiming.claims(folders, score=score), own=own, comparable=comparable)
    typer.echo(form(result))
    _end(result.unreadable)


def _check_form(
    latex: bool, markdown: bool, as_json: bool, of_latex: Mapping[str, str], columns: str, decimals: int
) -> None:
    """Refuse options that the printed form does not have.

    Raises:
        ConfigError: With the option.
    """
    if latex and (markdown or as_json):
        raise ConfigError(f"give --latex or --{'markdown' if markdown else 'json'}, not both")
    if given := [name for name, text in of_latex.items() if text and not latex]:
        raise ConfigError(f"--{given[0]} is of --latex; give both")
    if as_json and (columns or decimals != DECIMALS):
        raise ConfigError(f"--{'columns' if columns else 'decimals'} and --json: JSON has all numbers in full")


def _board(runs: Sequence[Path], file: Path) -> None:
    """Write the page of all tables, and say what is on it.

    Raises:
        ConfigError: If no run is finished, or the file cannot be written.
    """
    from fedshift.lab.tables.compare import board as boards
    from fedshift.lab.tables.compare import board_page

    made = boards.board(runs)
    _write({file: lambda: board_page.page(made, file)}, aside=False)
    rows = sum(len(table.numbers.rows) for table in made.tables)
    typer.echo(
        f"{plural(made.runs, 'run')} in {plural(len(made.tables), 'table')} of {plural(rows, 'row')}; open it "
        "in a browser"
    )
    for line in made.left_out:
        typer.echo(line, err=True)
    _end(made.unreadable)


def _check_alone(option: str, what: str, others: Mapping[str, object]) -> None:
    """Refuse options that something does not have.

    Args:
        option: The option that asks for it.
        what: Its name.
        others: The other options, with what was given.

    Raises:
        ConfigError: With the first of them that is given.
    """
    given = next((name for name, value in others.items() if value), None)
    if given is not None:
        raise ConfigError(f"{option} and {given}: {what} has no such part; give one of the two")


def _end(unreadable: Sequence[str]) -> None:
    """Raise exit code 1 if runs were left out because they cannot be read.

    The printed text names them.

    Raises:
        SystemExit: If runs were left out.
    """
    if unreadable:
        typer.echo(f"error: runs that cannot be read were left out: {len(unreadable)}", err=True)
        raise SystemExit(exit_codes.FAILED)
