"""The programs that documentation shows."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pypdbp
import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_program_in_the_readme(tmp_path):
    programs = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(programs) == 1, "the README has one program in Python"
    if "import numpy" in programs[0]:
        pytest.importorskip("numpy")
    file = tmp_path / "program.py"
    file.write_text(programs[0])
    run = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, ""), run.stderr


def test_the_example_in_the_module():
    tests = doctest.testmod(pypdbp)
    assert tests.attempted > 0 and tests.failed == 0
