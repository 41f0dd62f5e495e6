"""Test SQLite on a disk: `pytest test_disk.py --basetemp DIRECTORY`."""

from pathlib import Path

import pytest

from ones.testing import StoreContract


class TestDisk(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/ones.db"
