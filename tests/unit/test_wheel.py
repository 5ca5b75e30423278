"""The wheel carries templates, the agent, the lab and the patch series, and finds them where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier("main")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from ddtree_ops.apply import agentzip
from ddtree_ops.data import data_dir
from ddtree_ops.engine.find import find_series
from pathlib import Path
assert str(data_dir("templates")).startswith(sys.argv[1]), data_dir("templates")
assert (data_dir("deploy") / "lab" / "standin" / "install.py").is_file()
assert find_series("sglang-0.5.11", Path("/nowhere")).patches
print(agentzip.digest())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    target = work / "site"
    (wheel,) = work.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return target


def test_data_files_resolve_in_the_wheel_and_the_agent_is_the_same(installed: Path, tmp_path: Path) -> None:
    from ddtree_ops.apply import agentzip

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(installed)!r})" + PROGRAM,
            str(installed),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == agentzip.digest()


def test_the_installed_command_renders_the_committed_units(installed: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); from ddtree_ops.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "render", "--all", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
