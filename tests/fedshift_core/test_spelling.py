"""What is offered for a word that is unknown."""

import pytest

from fedshift_core.spelling import meant, near

METHODS = ("fedavg", "fedprox", "fedproto", "i2pfl", "moon")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("fedvag", "; did you mean fedavg?"),
        ("FedAvg", "; did you mean fedavg?"),
        ("fedprot", "; did you mean fedproto or fedprox?"),
        ("zzz", ""),
        (None, ""),
        (["moon"], ""),
        ("moon" * 100_000, ""),
    ],
)
def test_words_that_are_like_it_are_offered(word: object, expected: str) -> None:
    assert meant(word, METHODS) == expected


def test_the_word_of_the_list_is_told_as_it_is_written_there() -> None:
    assert near("pacs", ("PACS", "VLCS")) == ["PACS"]
