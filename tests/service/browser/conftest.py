"""A page in Chromium, and a Leadview whose Redis the test may stop and change."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.chromium import Page, open_page
from tests.harness.leadview import Leadview


@pytest.fixture
def leadview(leadview_with_own_redis: Leadview) -> Leadview:
    return leadview_with_own_redis


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with open_page(tmp_path) as page:
        page.size(1400)
        yield page
