"""FedShift from Python: what ``import fedshift`` gives.

Each function does what the command of the same name does, by the same code, with the same errors as exceptions
(:class:`fedshift.ConfigError` and its relatives). Keys are keyword arguments: ``rounds=3``, ``evaluate_every=5`` for
``evaluate-every``, ``train={"lr": 0.01}`` or ``**{"train.lr": 0.01}`` for a dotted key.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedshift.api import calling, keys
from fedshift.api.methods import MethodInfo
from fedshift.api.methods import method as method
from fedshift.api.methods import methods as methods
from fedshift.api.runs import Run
from fedshift.export import predict as predict
from fedshift.lab.tables.compare import Comparison as Comparison
from fedshift.lab.tables.compare import compare as compare
from fedshift.run import arguments
from fedshift_app.config.arguments import parse_arguments
from fedshift_core.errors import FederationError
from fedshift_core.paths import Named, user_path

if TYPE_CHECKING:
    from fedshift.api.model import Model
    from fedshift.lab.grid.evaluate.table import Evaluation
    from fedshift_clients.base import DomainClient as Client
    from fedshift_strategies.base import DomainStrategy as Strategy

Engine = Literal["simulation", "inline"]


def run(
    experiment: Named = "",
    *,
    method: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    engine: Engine | None = None,
    name: str | None = None,
    resume: Named | None = None,
    progress: bool = True,
    report: bool = False,
    **more: Any,
) -> Run:
    """Run an experiment and return its run folder as an object.

    It works in a script, in a notebook, in an event loop and in any thread, one run at a time in a process. Ctrl-C, or
    a notebook's stop, interrupts it; ``run(resume=FOLDER)`` goes on with the last full round, with the same bits.

        >>> first = run("handwritten", method="fedprox", rounds=1, engine="inline", name="first", progress=False,
        ...             train={"epochs": 1}, **{"allocation.share": 0.1})
        >>> first.state, first.results.method, sorted(first.results.final)
        ('completed', 'fedprox', ['scan', 'sketch', 'street', 'texture'])
        >>> first.config["train"]["epochs"], len(first.rounds)
        (1, 1)
        >>> run("handwritten", name="first")
        Traceback (most recent call last):
        fedshift_core.errors.ConfigError: name: .../runs/first exists already; choose another name, or remove it

    Args:
        experiment: Its name (`fedshift experiments`) or a YAML file; empty for ``handwritten``.
        method: The name of the method; None as the experiment says.
        rounds: The number of rounds; None as the experiment says.
        seed: The seed; None as the experiment says.
        engine: ``simulation`` (Flower's, with Ray), the default, or ``inline`` (this process and worker processes).
        name: The name of the run folder in ``output_dir``; None for one of experiment, method, seed and time.
        resume: The folder of an interrupted run to go on with; alone, or with the keys of that run.
        progress: Whether to show how the run goes on: a table in a terminal, a line in a notebook, else lines.
        report: Whether to write ``report.html`` at the end (:meth:`Run.report` does it later).
        more: Other keys of `fedshift run`: of the configuration, and nodes, workers, actors, cpus_per_client,
            gpus_per_client, data_dir, output_dir.

    Raises:
        ConfigError: If a key or a value is wrong, before anything starts.
        DataError: If images are missing or broken, before anything starts.
        FederationError: If the run cannot start or cannot go on.
    """
    own = {"method": method, "rounds": rounds, "seed": seed, "engine": engine, "name": name, "resume": resume}
    with _call("run", experiment, own | more, progress) as words:
        from fedshift.run.launch import progress_line, running

        flat, launch = parse_arguments(words)
        made = Run(running.run(flat, launch, progress_line.usual if progress else progress_line.silent))
        if report:
            made.report()
    return made


def load(folder: Named) -> Run:
    """Return a run folder as an object, finished or not.

        >>> load("runs")
        Traceback (most recent call last):
        fedshift_core.errors.ConfigError: load: .../runs is not the folder of a run: it has no config.yaml

    Args:
        folder: The run folder.

    Raises:
        ConfigError: If it is none.
    """
    return Run(folder)


def load_model(folder: Named) -> "Model":
    """Return a saved model as a torch module, with ``preprocess`` and ``classes``.

    Args:
        folder: The folder that :meth:`Run.save` or `fedshift save` wrote, as safetensors.

    Raises:
        FedShiftError: If it holds no such model.
    """
    from fedshift.api import model

    return model.opened(user_path(folder, "load_model"))


def sweep(experiment: Named = "", *, paper: str = "", progress: bool = True, **more: Any) -> Comparison:
    """Run a grid on all cores, each run in a process of its own, and compare. The same call goes on with the rest.

        >>> sweep("handwritten", method=["fedavg", "fedprox"], seed=range(2), lr=0.1)
        Traceback (most recent call last):
        fedshift_core.errors.ConfigError: fedavg seed=0: unknown key 'lr'; ...

    Args:
        experiment: As of :func:`run`.
        paper: A printed table to compare the runs with.
        progress: Whether to show how it goes on.
        more: Keys of :func:`run`, but for ``name`` and ``resume``. A list, tuple, range or array gives a key several
            values (a value that is itself a list stands in a list). Further keys: ``jobs`` runs side by side,
            ``order``, ``retries``, ``reuse``.

    Raises:
        FedShiftError: If the grid is wrong, before anything starts; if a run failed, after all others.
    """
    from fedshift.lab.grid.sweep import grid, sweeping

    with _call("sweep", experiment, more, progress, several=True, plain=grid.Options.model_fields) as words:
        return _compared(sweeping.sweep(words, paper))


def tune(
    experiment: Named = "",
    *,
    budget: int,
    method: str | Sequence[str] | None = None,
    seed: int | Sequence[int] | None = None,
    paper: str = "",
    progress: bool = True,
    **more: Any,
) -> "Tuned":
    """Search each method's values with the same budget, by validation images only, and compare them tuned and as is.

    The same call goes on where it was interrupted. It needs the extra ``tune``: Optuna.

    Args:
        experiment: As of :func:`run`.
        budget: Trials of each method.
        method: The methods; None as the experiment says.
        seed: Seeds of the comparison; the first one is that of the search.
        paper: A printed table to compare the runs with.
        progress: Whether to show how it goes on.
        more: Keys of :func:`run`; ``jobs``, ``pruning``, ``trial_rounds``, and ranges as
            ``search={"method.mu": [0.001, 1.0, "log"]}``.

    Raises:
        FedShiftError: If anything is wrong, before anything starts; if a method or a run failed, after all others.
    """
    from fedshift.lab.grid.sweep import grid
    from fedshift.lab.grid.tune import requested, tuning

    plain = {*grid.Options.model_fields, *requested.Options.model_fields}
    given = {"budget": budget, "method": method, "seed": seed} | more
    with _call("tune", experiment, given, progress, several=True, plain=plain) as words:
        folder, table = tuning.tune(words, paper)
    return Tuned(folder, _compared(table), tuning.summary(folder)["methods"])


@dataclass(frozen=True)
class Tuned:
    """What a search has found.

    Attributes:
        folder: Its folder, with all trials (``trials.csv``).
        table: The methods, tuned and as they are.
        methods: By method: its space, its own values (``default``), and the ``best`` trial with its values and its
            validation accuracy.
    """

    folder: Path
    table: Comparison
    methods: Mapping[str, Mapping[str, Any]]


def evaluate(models: Named | Iterable[Named], *, site: str = "", progress: bool = True, **more: Any) -> "Evaluation":
    """Score finished models on all nodes, without training.

    Args:
        models: Folders of saved models and runs; one or several.
        site: The SuperLink whose real nodes are asked; empty for simulated ones.
        progress: Whether to show how it goes on.
        more: Keys of `fedshift evaluate`: of the sections dataset, allocation, shift, adapt and federation, seed,
            output_dir, engine, nodes.

    Raises:
        FedShiftError: If a model, a key or the images are wrong, before anything is scored; if a scoring fails.
    """
    from fedshift.lab.grid.evaluate import command
    from fedshift.lab.grid.evaluate.table import Evaluation

    words = [*map(str, arguments.paths(models, "evaluate", "model")), *keys.words("", more)]
    with calling.call(keys.command("evaluate", words), progress=progress):
        folder, scored = command.evaluated(words, site, aside=False)
    return Evaluation(folder, tuple(scored))


def register(
    name: str,
    *,
    client: "type[Client[Any]] | None" = None,
    strategy: "type[Strategy[Any]] | None" = None,
    title: str = "",
    terms: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    **about: Any,
) -> MethodInfo:
    """Give a method of your own a name, in a notebook or a script; ``method=NAME`` then runs it.

    It runs in simulation and with ``engine="inline"``. The classes may be those of a notebook's cells: they are carried
    to the processes of a run by value, in a file next to the cache of images, which a run names and a resumed run
    needs. Global names that they refer to are carried as they are when a run begins. Register a changed class again; a
    run that is over keeps the file that it had. Real nodes take methods of installed packages alone
    (docs/guide/own-method.md).

        >>> class Shorter(DomainClient):
        ...     def loss(self, batch):
        ...         features, logits = self.forward(batch.x)
        ...         return {"ce": cross_entropy(logits, batch.y), "length": 0.01 * features.square().mean()}
        >>> register("shorter", client=Shorter, terms=["length"], never_off="it has no switch").name
        'shorter'
        >>> register("fedavg", client=Shorter)
        Traceback (most recent call last):
        fedshift_core.errors.ConfigError: register: 'fedavg' is the name of a method of fedshift

    Args:
        name: Its name.
        client: The node's side; None for FedAvg's.
        strategy: The server's side; None for FedAvg's.
        title: One line for lists.
        terms: Names of its losses other than ``ce``: the server takes no others from a node.
        defaults: Parameters that differ from the defaults of their models, and settings of other sections.
        about: Other fields of :class:`fedshift.Method`, such as ``off``, ``private``, ``needs``, ``search``.

    Raises:
        ConfigError: If a field is wrong, the name is taken, or the classes refer to what cannot be carried.
    """
    from fedshift.api import registering

    fields = {"title": title or name, "terms": terms, "defaults": defaults, **about}
    registering.register(name, client, strategy, fields)
    return method(name)


@contextmanager
def _call(
    command: str, experiment: Named, given: Mapping[str, Any], progress: bool, **form: Any
) -> Iterator[list[str]]:
    """Do what a command does; yield its words, with the files of the registered methods that they name."""
    words = keys.words(experiment, given, **form)
    if "fedshift.api.registering" in sys.modules:  # else nothing is registered; it imports torch
        from fedshift.api import registering

        words = registering.with_files(words)
    with calling.call(keys.command(command, words), progress=progress):
        yield words


def _compared(table: Comparison | None) -> Comparison:
    if table is None:  # a run that is not finished has raised before
        raise FederationError("no run is finished")
    return table
