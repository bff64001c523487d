"""Numbers in texts agree with the words after them."""

from fedshift_core.plural import plural


def test_one_is_singular() -> None:
    assert [plural(number, "local epoch") for number in (0, 1, 2)] == [
        "0 local epochs",
        "1 local epoch",
        "2 local epochs",
    ]
    assert [plural(number, "file is", "files are") for number in (1, 3)] == ["1 file is", "3 files are"]
    assert plural(12345, "byte", form=",") == "12,345 bytes"
