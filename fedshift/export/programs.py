"""Converts models to TorchScript, ONNX and torch.export, and checks each program against its model.

TorchScript and exported files are code: only this module opens them, and only if the user names them.
"""

import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.jit._trace import TracerWarning

from fedshift.export.forms import FILES, Form
from fedshift.export.scorer import Scorer
from fedshift_core import log_levels
from fedshift_core.errors import FedShiftError
from fedshift_core.plural import plural
from fedshift_datasets.io import presence

Program = Callable[[Tensor], Tensor]
ONNX_NEEDS = ("onnx", "onnxscript", "onnxruntime")
INPUT, OUTPUT = "images", "scores"
CHECKED = (1, 3)  # batch sizes with which a program is compared with its model
TOLERANCE = 1e-4  # tolerance of a score, as a share of the largest


def check_form(form: Form) -> None:
    """Refuse a form whose packages are not installed.

    Raises:
        FedShiftError: With the command that installs them.
    """
    missing = [name for name in ONNX_NEEDS if form == "onnx" and importlib.util.find_spec(name) is None]
    if missing:
        raise FedShiftError(f"onnx needs {', '.join(missing)}: pip install 'fedshift[onnx]'")


def made(scorer: Scorer, form: Form) -> bytes:
    """Return the bytes of a model's program, which takes batches of any size.

    Raises:
        FedShiftError: If the conversion fails, or the program's scores differ from the model's.
    """
    with tempfile.TemporaryDirectory(prefix="fedshift-") as folder:
        path = Path(folder) / FILES[form]
        with _errors_in_a_line(form), torch.no_grad(), _quiet():
            _write(scorer, path, form)
            _check(scorer, opened(path, form))
        return path.read_bytes()


def opened(path: Path, form: Form) -> Program:
    """Return the program in a file, on the CPU; this trusts TorchScript and exported files.

    Raises:
        FedShiftError: If it cannot be opened, or onnxruntime is not installed.
    """
    check_form(form)
    program: Program
    with presence.reading(path), _quiet():
        if form == "onnx":
            return _onnx_session(path)
        if form == "torchscript":
            program = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
        else:
            program = torch.export.load(path).module()
        return program


@contextmanager
def _errors_in_a_line(form: Form) -> Iterator[None]:
    """Convert any exception of an exporter into a one-line error."""
    try:
        yield
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the innermost cause names the unsupported part
            cause = cause.__cause__
        raise FedShiftError(f"this model cannot be saved as {form}: {presence.brief(cause)}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings for developers, and those that :func:`_check` makes superfluous."""
    with log_levels.at_least(logging.ERROR, "onnx_ir"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`?torch\.jit\.")  # the user chose TorchScript
        warnings.filterwarnings("ignore", category=TracerWarning)
        yield


def _check(scorer: Scorer, program: Program) -> None:
    rng = torch.Generator().manual_seed(0)
    for number in CHECKED:
        images = torch.rand(number, 3, scorer.size, scorer.size, generator=rng)
        expected, actual = scorer(images), program(images)
        if actual.shape != expected.shape:
            raise ValueError(
                f"{plural(number, 'image')} give {tuple(actual.shape)}, the model gives {tuple(expected.shape)}"
            )
        difference = float((actual - expected).abs().max())
        if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            raise ValueError(f"its scores differ from the model's by {difference:.2g}")


def _write(scorer: Scorer, path: Path, form: Form) -> None:
    example = torch.zeros(2, 3, scorer.size, scorer.size)
    if form == "torchscript":
        traced = torch.jit.trace(scorer, example, check_trace=False)  # type: ignore[no-untyped-call]
        traced.save(str(path))
        return
    batch = torch.export.Dim("batch", min=1)
    exported = torch.export.export(scorer, (example,), dynamic_shapes={INPUT: {0: batch}})
    if form == "exported":
        torch.export.save(exported, path)
        return
    exported = exported.run_decompositions({**torch.export.default_decompositions(), **_AS_ONNX})
    program = torch.onnx.export(exported, dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT])
    assert program is not None
    program.save(path, external_data=False)


def _distances(rows: Tensor, others: Tensor, p: float, mode: int | None) -> Tensor:
    """Return the distances (B, P) of rows (B, D) and (P, D), as torch.cdist, which ONNX lacks."""
    if p != 2:
        raise ValueError(f"distances with p={p:g}")
    return (rows[..., :, None, :] - others[..., None, :, :]).square().sum(dim=-1).sqrt()


_AS_ONNX = {torch.ops.aten._cdist_forward.default: _distances}


def _onnx_session(path: Path) -> Program:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        (scores,) = session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(scores)

    return run
