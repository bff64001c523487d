"""The keys that ``fedshift rescore`` takes; a hint in a message reads this without the rest of the command."""

#: Settings that may differ in a new scoring: they do not affect the training.
MAY_DIFFER = (
    "shift.name",
    "shift.corruption",
    "shift.severity",
    "evaluate.bn",
    "evaluate.bn_images",
    "evaluate.bn_order",
    "evaluate.figures",
    "evaluate.site_figures",
    "evaluate.personal_on",
    "evaluate.untrained",
    "images.eval_batch",
    "dataset.data_dir",
    "dataset.classes_stated",
    "tracking",
)
ADAPT = "adapt."  # and all of this section
OWN = ("output-dir", "jobs")  # of the command itself


def may_differ(key: str) -> bool:
    """Tell whether a setting may differ from that of the run."""
    return key in MAY_DIFFER or key.startswith(ADAPT)
