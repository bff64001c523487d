"""The keys that ``fedshift evaluate`` takes; the completion of a shell reads this without the rest of the command."""

from fedshift_app.config.arguments import LAUNCH_KEYS

#: Sections that may be set: which images, who holds them, what is done before a score, how nodes are waited for.
SECTIONS = ("dataset.", "allocation.", "shift.", "adapt.", "federation.")
KEYS = (
    "evaluate.bn",
    "evaluate.bn_images",
    "evaluate.bn_order",
    "evaluate.figures",
    "evaluate.personal_on",
    "images.eval_batch",
    "train.threads",
    "train.precision",
)
FLAT = ("dataset", "data-dir", "output-dir", "seed", "tracking", "set")
#: Of these sections nevertheless the model's own.
OF_MODEL = ("dataset.classes", "dataset.classes_stated")


def allowed(key: str) -> bool:
    """Tell whether a key may be set: it changes neither the model nor what it is."""
    return key not in OF_MODEL and (key in (*FLAT, *LAUNCH_KEYS, *KEYS) or key.startswith(SECTIONS))
