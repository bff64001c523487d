"""Names of methods, rows and columns as papers print them, in LaTeX and as plain text."""

import re

from fedshift.lab.tables.compare.rows import Row
from fedshift_app.config import registry
from fedshift_core.plural import capital

#: Domains and columns whose printed names are more than their words with a capital letter.
_PRINTED = {
    "mnist": "MNIST",
    "mnistm": "MNIST-M",
    "usps": "USPS",
    "svhn": "SVHN",
    "syn": "SYN",
    "dslr": "DSLR",
    "labelme": "LabelMe",
    "pascal": "PASCAL",
    "sun": "SUN",
    "cifar10": "CIFAR-10",
    "cifar10.1": "CIFAR-10.1",
    "bcn": "BCN",
    "msk": "MSK",
}
#: Data sets whose printed names are not those of their files.
_DATA_SETS = {
    "digits": "Digits",
    "digit5": "Digit-5",
    "pacs": "PACS",
    "office-caltech10": "Office-Caltech10",
    "vlcs": "VLCS",
    "domainnet": "DomainNet",
    "domainnet10": "DomainNet (ten classes)",
    "cifar10": "CIFAR-10",
    "camelyon17": "Camelyon17",
    "fed-isic2019": "Fed-ISIC2019",
}
_SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "%": r"\%",
        "#": r"\#",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': "{''}",
        "±": r"$\pm$",
        "\u00d7": r"$\times$",
        "†": r"$\dagger$",
        "…": r"\dots{}",
    }
)
_POWER = re.compile(r"\$\^(\d)\$")
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def escaped(text: str) -> str:
    """Return a text as LaTeX that prints it letter by letter; line ends become spaces."""
    return " ".join(text.split()).translate(_SPECIAL)


def method(name: str) -> str:
    """Return a method's name as papers print it, in LaTeX; that of its file if none is declared."""
    return _declared(name) or escaped(name)


def text_of(name: str) -> str:
    """Return a method's name as papers print it, as plain text; that of its file if none is declared."""
    return _POWER.sub(lambda power: _RAISED[int(power[1])], _declared(name)) or name


def _declared(name: str) -> str:
    known = registry.known(name)
    return "" if known is None else known.latex


def row_latex(row: Row) -> str:
    """Return the label of a row in LaTeX: method, whether it approximates or was tuned, differing parameters."""
    brackets = _brackets(row)
    return method(row.method) + (f" ({escaped(', '.join(brackets))})" if brackets else "")


def row_text(row: Row) -> str:
    """Return the same as plain text, with raised digits: ``F²DC (lambda1=0.1)``."""
    brackets = _brackets(row)
    return text_of(row.method) + (f" ({', '.join(brackets)})" if brackets else "")


def column(name: str) -> str:
    """Return a column's name as papers print it: ``art_painting`` is Art Painting; capitals stay."""
    return _PRINTED.get(name) or " ".join(map(capital, re.split(r"[_\s]+", name)))


def data_set(name: str) -> str:
    """Return a data set's name as papers print it; a user's own as it is."""
    return _DATA_SETS.get(name, name)


def _brackets(row: Row) -> list[str]:
    """Return what a label says besides the method: an approximation, a search, parameters."""
    known = registry.known(row.method)
    rest = row.label.removeprefix(registry.label(row.method)).strip()
    parts = ["approximation"] if known is not None and known.approximation else []
    return [*parts, *filter(None, re.split(r" (?=[\w.-]+=)", rest))]
