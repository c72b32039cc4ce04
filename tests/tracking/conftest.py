"""One database for all tests of tracking, because MLflow takes seconds to create its tables."""

from __future__ import annotations

import pytest

from mm_ldlm.app.tracking import mlflow as tracking


@pytest.fixture(scope="session")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tracking.resolve_uri("sqlite:///db/mlflow.db", root=tmp_path_factory.mktemp("project"))
