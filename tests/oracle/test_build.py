"""What the build found: tests of optional parts skip where they are missing, and here they must not be."""

from conftest import BUILD


def test_parquet_is_read():
    assert (BUILD / "libtdock_data_parquet.so").is_file(), "CMake found no pyarrow in .venv-parquet"
