"""What several tests of data sets need."""

import pytest

from fedshift_datasets.base import Source
from fedshift_datasets.io import sites


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the looks at a site's folder."""
    looked: list[str] = []
    look = sites.look

    def counted(domain: str, source: Source, *, own: bool) -> sites.Site | None:
        looked.append(domain)
        return look(domain, source, own=own)

    monkeypatch.setattr(sites, "look", counted)
    return looked
