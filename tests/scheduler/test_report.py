import pytest

from prfaas_ref.errors import UserError
from prfaas_ref.scheduler.report import table, write_atomically


def test_a_table_lines_up():
    text = table(("name", "n"), [("a", 1.5), ("bcdef", 12345), ("c", None)])
    assert text.splitlines() == ["name        n", "-----  ------", "a         1.5", "bcdef  12,345", "c           -"]


def test_a_file_is_whole_and_leaves_nothing_beside_it(tmp_path):
    write_atomically(tmp_path / "x", "one")
    write_atomically(tmp_path / "x", "two")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "two"
    with pytest.raises(UserError, match="cannot write"):
        write_atomically(tmp_path / "no" / "x", "three")
