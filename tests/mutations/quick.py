"""A pytest plugin: hypothesis reports failures without shrinking them."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile(
        "mutations", settings(settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate))
    )
    settings.load_profile("mutations")
