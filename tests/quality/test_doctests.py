"""Examples of pages and docstrings give what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("doctests", ROOT / "docs" / "doctests.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DOCTESTS = _loaded()


@pytest.mark.long
@pytest.mark.parametrize("path", DOCTESTS.sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_give_what_they_say(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed, attempted = DOCTESTS.run(path)
    assert attempted == len(re.findall(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert not failed, capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("docs/page.md", "# A page\n\n```python\n>>> 1 + 1\n3\n```\n"),
        (
            "ddlsched/module.py",
            'def double(x):\n    """Double.\n\n    >>> double(1)\n    3\n    """\n    return 2 * x\n',
        ),
    ],
)
def test_a_wrong_example_stops_the_build(tmp_path: Path, file: str, text: str) -> None:
    for name in ("README.md", "ddlsched/__init__.py", "docs/doctests.py", file):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "docs" / "doctests.py").write_bytes((ROOT / "docs" / "doctests.py").read_bytes())
    command = [sys.executable, "docs/doctests.py"]
    right = text.replace("3\n", "2\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # Both contents are as long and may be of the same second.
    for content, code in ((right, 0), (text, 1)):
        (tmp_path / file).write_text(content, encoding="utf-8")
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
    assert f'{Path(file).name}", line' in done.stdout


def test_the_site_is_built_from_examples_that_are_right() -> None:
    build = (ROOT / "docs" / "build").read_text(encoding="utf-8")
    assert "set -euo pipefail" in build
    assert build.index('"$python" docs/doctests.py\n') < build.index('"$python" -m sphinx')
