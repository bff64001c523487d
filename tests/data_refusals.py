"""Expect a DataError: two lines at most, that names values; its wording is kept as in ``refusals.py``."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import refusals

from fedshift_core.errors import DataError


@contextmanager
def refuses(*named: object, worded: bool = True) -> Iterator[None]:
    """Expect a refusal; what a library says of a file is left out of its wording. ``worded=False`` keeps none."""
    with pytest.raises(DataError) as caught:
        yield
    assert str(caught.value).count("\n") <= 1
    message = f"{caught.value.text}\n{caught.value.remedy}".rstrip()  # where it would be cut depends on the folder
    missing = [name for name in map(str, named) if name not in message]
    assert not missing, f"{missing} not named in: {message}"
    if worded:
        refusals.worded(re.sub(r"cannot be (\w+) \((\w+): .*\)", r"cannot be \1 (\2)", message))
