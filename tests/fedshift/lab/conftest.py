"""A reader of the pages that reports and comparisons write."""

from html.parser import HTMLParser

import pytest

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Page(HTMLParser):
    """A page: each element's name, attributes and text; all are closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open = [("", dict[str, str](), list[str]())]
        self.feed(source)
        self.close()
        assert len(self._open) == 1
        self.text = "".join(self._open[0][2])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}, []))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self._open += [self.elements[-1]] * (tag not in VOID)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for *_, text in self._open:
            text += [data] * (self._open[-1][0] != "style")

    def all(self, *tags: str) -> list[dict[str, str]]:
        """Return the attributes of elements."""
        return [attributes for tag, attributes, _ in self.elements if tag in tags]

    def texts(self, *tags: str) -> list[str]:
        return ["".join(text).replace("\xa0", " ").strip() for tag, _, text in self.elements if tag in tags]

    def plots(self, start: str = "") -> list[str]:
        """Return what figures are called that begin so."""
        return [label for result in self.all("svg") if (label := result["aria-label"]).startswith(start)]

    @property
    def tables(self) -> dict[str, list[list[str]]]:
        """The rows of each table by its id; where a cell holds a number in full, that."""
        tables: dict[str, list[list[str]]] = {}
        for tag, attributes, text in self.elements:
            if tag == "table":
                rows = tables.setdefault(attributes.get("id", ""), [])
            elif tag == "tr":
                rows.append([])
            elif tag in ("td", "th"):
                rows[-1].append("".join(text).strip())
            elif tag == "data":
                rows[-1][-1] = attributes["value"]
        return tables


@pytest.fixture(scope="session")
def read_page() -> type[Page]:
    return Page
