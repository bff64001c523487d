"""``fedshift compare`` and ``claims``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand

from fedshift.lab.tables import compare as comparing
from fedshift.lab.tables.compare import DECIMALS, MOST_DECIMALS
from fedshift.run.frames import written
from fedshift.run.options import Bounds, check_alone, command, form_of
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.paths import typed_path
from fedshift_core.plural import plural

app = typer.Typer()
PRINTED = "-"  # what --latex alone stands for
#: Options that go with --sites.
OF_SITES = (
    "runs",
    "sites",
    "scored",
    "held_out",
    "allow_different",
    "markdown",
    "as_json",
    "csv",
    "keep",
    "caption",
    "label",
)


class _Command(TyperCommand):
    """The command, in which a file may follow ``--latex``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``--latex`` as an option that prints, unless a .tex file follows it."""
        after = [*args[1:], ""]
        given = zip(args, after, strict=True)
        return super().parse_args(
            ctx,
            [
                f"--latex={PRINTED}" if (word, next.endswith(".tex")) == ("--latex", False) else word
                for word, next in given
            ],
        )


@command(app, of=comparing.compare, cls=_Command)
def compare(
    runs: list[Path],
    *,
    sites: str = "",
    columns: str = "",
    decimals: Annotated[int, Bounds(0, MOST_DECIMALS)] = DECIMALS,
    markdown: bool = False,
    latex: str = "",
    caption: str = "",
    label: str = "",
    as_json: bool = False,
    csv: Path | None = None,
    table_csv: Path | None = None,
    figures: Path | None = None,
    html: Path | None = None,
    board: Path | None = None,
    keep: Path | None = None,
    **of: Any,
) -> None:
    """Compare finished runs: methods x domains, mean and spread over seeds, difference to FedAvg.

    Args:
        runs (RUN...): Run folders, or folders that hold some.
        sites: A metric of each site by method, with 95 % intervals: accuracy, balanced_accuracy, auroc, auprc, brier,
            ece, or of a class sensitivity:CLASS, specificity:CLASS, auroc:CLASS, auprc:CLASS.
        columns: Columns to print and their order, with commas: photo,sketch,AVG; empty for all.
        decimals: Decimals to print.
        markdown: Print Markdown.
        latex (--latex [FILE.tex]): LaTeX with booktabs, as papers have it: printed, or written to a file.
        caption: With --latex: the caption, in LaTeX.
        label: With --latex: the label.
        as_json: Print JSON.
        csv: A CSV file to write: a line for each run and domain.
        table_csv: A CSV file to write: a line for each row of the table.
        figures: A folder for all figures as PDF, SVG and PNG, and the curves as CSV.
        html: A page to write.
        board: A page to write with a table for each set of runs that compare; chosen and sorted there.
        keep: A folder for one small JSON file per run, which `compare` reads as well.
        of: Options of the comparison.

    Examples:
        fedshift compare runs --html table.html
        fedshift compare runs --score balanced_accuracy --markdown
    """
    form = form_of(markdown=markdown, json=as_json, latex=latex)
    if given := [name for name, text in {"caption": caption, "label": label}.items() if text and not latex]:
        raise ConfigError(f"--{given[0]} is of --latex; give both")
    if as_json and (columns or decimals != DECIMALS):
        raise ConfigError(f"--{'columns' if columns else 'decimals'} and --json: JSON has all numbers in full")
    if board is not None:
        check_alone("--board", "that page has no such part", but=("runs", "board"))
        _board(runs, board)
        return
    aside, files = form != "text", dict[Path | None, Callable[[Path], str]]()
    if sites:
        check_alone("--sites", "the table of sites has no such part", but=OF_SITES)
        from fedshift.lab.tables.compare import sites as of_sites

        by_site = of_sites.table(runs, sites, **{key: of[key] for key in OF_SITES if key in of})
        unreadable, printed = by_site.unreadable, getattr(by_site, form)()
        files[csv] = lambda _: by_site.csv()
    else:
        result = comparing.compare(runs, **of)
        table = result.with_columns([name.strip() for name in columns.split(",")]) if columns else result
        more = {"decimals": decimals} | ({"caption": caption, "label": label} if latex else {})
        unreadable = result.numbers.unreadable
        printed = table.json() if as_json else getattr(table, "to_latex" if latex else form)(**more)
        files |= {csv: lambda _: result.runs_csv(), table_csv: lambda _: result.csv(), html: result.html}
    if latex not in ("", PRINTED):
        files[typed_path(latex, "--latex")] = lambda _: printed
    else:
        typer.echo(printed)
    _write(files, aside)
    if figures is not None:
        _wrote(table.figures(figures), figures, aside)
    if keep is not None:
        from fedshift.lab.tables.results import archive

        _wrote(archive.keep(runs, keep), keep, aside)
    _end(unreadable)


def _write(contents: Mapping[Path | None, Callable[[Path], str]], aside: bool) -> None:
    """Write the files that were asked for, and say so; ``aside`` on standard error."""
    for file, content in contents.items():
        if file is not None:
            typer.echo(f"wrote {shown(written(file, content), WHOLE_PATH)}", err=aside)


def _wrote(files: Sequence[Path], folder: Path, aside: bool) -> None:
    typer.echo(f"wrote {plural(len(files), 'file')} into {shown(folder.resolve(), WHOLE_PATH)}", err=aside)


@command(app)
def claims(
    folders: list[Path],
    *,
    score: str = "last5",
    own: bool = False,
    comparable: bool = False,
    markdown: bool = False,
    as_json: bool = False,
) -> None:
    """Compare runs with each gain over FedAvg that papers print: the same sign, the same size, or not.

    Args:
        folders: Folders of runs that compare, or folders that hold such folders.
        score: Which accuracies: last5, final, bn=WAY, ...; as `compare` has it.
        own: Show the papers' own methods alone.
        comparable: Show no rows that do not compare.
        markdown: Print Markdown.
        as_json: Print JSON.

    Examples:
        fedshift claims runs
        fedshift claims runs --comparable --markdown
    """
    from fedshift.lab.tables.compare import claims as claiming

    form = form_of(markdown=markdown, json=as_json)
    result = replace(claiming.claims(folders, score=score), own=own, comparable=comparable)
    typer.echo(getattr(result, form)())
    _end(result.unreadable)


def _board(runs: Sequence[Path], file: Path) -> None:
    """Write the page of all tables, and say what is on it.

    Raises:
        ConfigError: If no run is finished, or the file cannot be written.
    """
    from fedshift.lab.tables.compare import board as boards
    from fedshift.lab.tables.compare import board_page

    made = boards.board(runs)
    _write({file: lambda _: board_page.page(made, file)}, aside=False)
    rows = sum(len(table.numbers.rows) for table in made.tables)
    typer.echo(
        f"{plural(made.runs, 'run')} in {plural(len(made.tables), 'table')} of {plural(rows, 'row')}; open it "
        "in a browser"
    )
    for line in made.left_out:
        typer.echo(line, err=True)
    _end(made.unreadable)


def _end(unreadable: Sequence[str]) -> None:
    """Raise exit code 1 if runs were left out because they cannot be read.

    The printed text names them.

    Raises:
        SystemExit: If runs were left out.
    """
    if unreadable:
        typer.echo(f"error: runs that cannot be read were left out: {len(unreadable)}", err=True)
        raise SystemExit(exit_codes.FAILED)
