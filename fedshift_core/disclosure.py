"""The four words for what an array of a node tells of its images, and the rule of each.

| word | an array holds | may leave a node whose owner has a policy |
| --- | --- | --- |
| ``model`` | a function of the received and the trained weights | yes; with ``weights: masked`` inside secure sums |
| ``sum over classes`` | a sum or mean over all images, in which no class is singled out | of ``least_images`` or more |
| ``class`` | rows, each of the images of one class | if each class that is there has ``least_images`` or more |
| ``image`` | rows, each of one image, or of some that nobody counts | no, unless ``least_images`` is 1 |

A method states the word of each array that its nodes contribute
(:attr:`fedshift_strategies.hooks.MethodHooks.behind`), a feature that of each of its keys
(:class:`fedshift_core.features.Key`). The policy, secure sums, the log of what leaves a node and the pages go by
these; tests/security/test_word_of_each_array.py derives each word from what a node sends.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, plain

Word = Literal["model", "sum over classes", "class", "image"]
WORDS: tuple[Word, ...] = get_args(Word)  # the strictest last
MODEL, SUM, CLASS, IMAGE = WORDS
#: How names of shared arrays end that are statistics of images: BatchNorm's and FedFA's.
BUFFERS = (".running_mean", ".running_var", ".mean", ".square")
HELD = ("images", "nodes", "rows")  # sums in which a node without images of a class has no part (``layout.Sum``)


def checked(word: str, where: str) -> None:
    """Check a word that a method states.

    Raises:
        ConfigError: If it is none of the four.
    """
    if word not in WORDS:
        raise ConfigError(f"{where}: {as_found(word)}, allowed are {', '.join(WORDS)}")


def of_shared(name: str) -> Word:
    """Return the word of a shared array: weights are ``model``, statistics of maps are of all images."""
    return SUM if name.endswith(BUFFERS) else MODEL


def refuse_array(word: Word, name: str, least_images: int) -> str:
    """Return why an array may not leave, whatever images the node has; empty where it may."""
    if word != IMAGE or least_images == 1:
        return ""
    return (
        f"a row of {plain(name)} may be of a single image, which cannot be left away by class; "
        f"least_images={least_images}"
    )


def refuse_images(word: Word, name: str, least_images: int, class_counts: Sequence[int]) -> str:
    """Return why an array may not leave for the images that it was made of, by class; empty where it may."""
    few = word == CLASS and any(0 < count < least_images for count in class_counts)
    if few or (word == SUM and sum(class_counts) < least_images):
        return f"fewer than least_images={least_images} images are behind {'a class of ' if few else ''}{plain(name)}"
    return ""


def refuse_sum(word: Word, name: str, how: str) -> str:
    """Return why a server must not be given the sum of an array over nodes; empty where it may.

    Args:
        word: The array's.
        name: The array's.
        how: How it is a sum (``fedshift_core.secure.layout.Sum``).
    """
    if word == IMAGE:
        return f"{name} has a row of each image, which no sum hides"
    if word == CLASS and how not in HELD:
        return f"{name} has a part of each class, of which no count says how many nodes hold it"
    return ""
