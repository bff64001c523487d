"""Segmentation: a class for each pixel (``task: segmentation``)."""

from typing import Any

from pydantic import Field

from fedshift_app.tasks import TaskName
from fedshift_core.disclosure import CLASS
from fedshift_core.errors import ConfigError
from fedshift_core.features import Case, Feature, FeatureOptions, Key, Need, ours, said, value_of
from fedshift_core.params import ConfigModel
from fedshift_core.tasks import Task

NAME = "segmentation"
#: Names on the wire: whether figures of masks are asked for, and the record with them.
ASK, RECORD = "mask-figures", "mask-figures"
#: By the unit of a site's distances, how the name of its array begins. It tells that all spacings are known, or not.
PIXELS, MILLIMETRES = "px", "mm"
UNITS = {PIXELS: "numbers/", MILLIMETRES: "millimetres/"}


class MaskOptions(ConfigModel):
    """Loss and figures of ``task: segmentation``."""

    ce: float = Field(1.0, ge=0)
    """Weight of the cross-entropy of pixels."""
    dice: float = Field(1.0, ge=0)
    """Weight of soft Dice, 1 - mean over classes (2 sum p g + e) / (sum p + sum g + e), sums over each image."""
    background: bool = False
    """Whether class 0, the background, is one of the classes of soft Dice."""
    tolerance: float = Field(1.0, gt=0)
    """Distance up to which surface Dice takes two outlines for the same: in mm where a site knows them, or pixels."""


class Options(FeatureOptions):
    """The keys of the task."""

    section = ""
    task: TaskName = Field(
        "classification", description="What is learnt of images: a class each, or a class of each pixel."
    )
    segmentation: MaskOptions = Field(MaskOptions(), description="Loss and figures of masks (task=segmentation).")


def _completed(config: Any) -> Any:
    """Return the configuration without what counts images by class, which is on where nothing is said of it.

    A mask has several classes.
    """
    if config.task != NAME:
        return config
    sections: dict[str, Any] = {}
    for key in (feature.key for feature in ours() if feature.word == CLASS and feature.name != NAME):
        section, _, name = key.partition(".")
        own = sections.get(section, getattr(config, section))
        if name in own.model_fields_set and getattr(own, name):
            raise ConfigError(
                f"{said(key, True)} counts images by their class; with task=segmentation allowed is false"
            )
        sections[section] = own.model_copy(update={name: False})
    return config.model_copy(update=sections)


def _rules(case: Case) -> str:
    config = case.config
    if config.task != NAME:
        return _of_another(config)
    if not config.segmentation.ce and not config.segmentation.dice:
        return "segmentation.ce=0 and segmentation.dice=0 leave no loss; one of them must be above 0"
    from fedshift_app.config.needs import goes_by_predictions

    if why := goes_by_predictions(config.adapt):
        return f"task=segmentation does not fit: {why}"
    return _of_whole_images(config) or _kept_views(config)


def _of_another(config: Any) -> str:
    """Return what of segmentation a run of another task has."""
    if config.segmentation != MaskOptions():
        return f"segmentation: its keys do nothing with task={config.task}; they need task={NAME}"
    if config.dataset.masks:
        return f"dataset.masks=true needs task={NAME}, found task={config.task}"
    if False not in config.dataset.known().masked:
        return f"task={config.task}: images of {config.dataset.name} have masks; allowed is {NAME}"
    from fedshift_clients.models.catalog import has_decoder

    named = [name for name in (config.model.name, *config.model.per_node) if has_decoder(name)]
    return f"model.name={named[0]} gives a class of each pixel; it needs task={NAME}" if named else ""


def _kept_views(config: Any) -> str:
    """Return why views of images cannot be kept, whose masks move with them."""
    moving = [key for key in ("crop_padding", "flip", "resized_crop") if key in config.images.augmentations]
    if not config.model.precompute or not moving:
        return ""
    return (
        f"images.{moving[0]} moves masks with their images, of which model.precompute=on keeps views alone; with "
        f"task={NAME} turn {' and '.join(f'images.{key}' for key in moving)} off, or set model.precompute=off"
    )


def _of_whole_images(config: Any) -> str:
    """Return why a key is for images of one class each, or for two views of one, whose masks differ."""
    for key, allowed in (
        ("train.loss", "cross-entropy"),
        ("train.class_weights", "none"),
        ("train.sampler", "shuffle"),
        ("images.views", 1),
        ("model.head", "linear"),
        ("model.projection", 0),
        ("shift.name", "none"),
    ):
        if (value := value_of(config, key)) != allowed:
            return f"{said(key, value)} is for images of one class each; with task=segmentation allowed is {allowed}"
    return ""


FEATURE = Feature(
    NAME,
    "A class for each pixel",
    f"task={NAME}",
    "fedshift_app.tasks.segmentation.server:Masks",
    "fedshift_app.tasks.segmentation.node:MasksOnNode",
    show="fedshift_app.tasks.segmentation.show:show",
    section="fedshift_app.tasks.segmentation.show:Section",
    place=155,
    options=Options,
    needs=(Need("dense targets"),),
    completed=_completed,
    rules=_rules,
    evaluate=(Key(ASK, "bool", "work out figures of masks by class"),),
    records=(Key(RECORD, "arrays", "figures of masks by class, with images and patients behind them, in px or mm"),),
    word=CLASS,
    tells="figures of masks by class, with numbers of images and patients",
    network="fedshift_app.tasks.segmentation.model:check_network",
    task=Task(
        score="Dice of images",
        kind="image-segmentation",
        metric="dice",
        piece="pixel",
        target="mask",
        dataset={"masks": True},
        score_of_each="fedshift_app.tasks.segmentation.losses:image_scores",
        predictions="fedshift_app.tasks.segmentation.predictions:Masks",
        found="fedshift_datasets.sets.folders:has_masks",
        line="task: segmentation   # each image has a mask; classes are named in the order of its values, the "
        "background first\n",
        network="unet:small",
        why="small and untrained; unet:resnet18 (fedshift[segmentation]) has any encoder of timm",
        optimizer="  optimizer: adam    # a decoder that begins untrained learns by SGD in many more rounds\n"
        "  lr: 0.003\n",
        methods=("fedavg", "fedbn", "fedprox", "local"),
    ),
)
