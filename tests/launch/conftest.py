from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.helpers import write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prefix of token files."""
    folder: Path = tmp_path_factory.mktemp("corpus")
    return write_corpus(folder / "tiny_text_document")
