"""What a line names stands behind the hint: the library, whose symbol it is, both versions, the device, the path."""

import re

import pytest

from ddtree_ops.core.log_text import clean
from ddtree_ops.core.named import names, told

pytestmark = pytest.mark.tier("preflight")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("x.so: undefined symbol: _ZN3c104cuda9SetDeviceEab", "torch"),
        ("x.so: undefined symbol: cuGreenCtxStreamCreate", "the driver"),
        ("ImportError: libnvrtc.so.12: cannot open shared object file", "libnvrtc.so.12"),
        ("driver is too old (found version 12080)", "CUDA 12.8"),
        (
            "flashinfer_python is installed with version 0.6.3, which is",
            "flashinfer_python is installed with version 0.6.3",
        ),
        ("Exception: sgl-kernel with minimum required version 0.3.12 is not installed", "sgl-kernel"),
        ("PermissionError: [Errno 13] Permission denied: '/.triton'", "/.triton"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "ninja"),
        ("NVRM: Xid (PCI:0000:9c:00): 48", "PCI:0000:9c:00"),
        ("ls: cannot access '/dev/nvidia-uvm': No such file or directory", "/dev/nvidia-uvm"),
        ("launch_server.py: error: unrecognized arguments: --enable-foo", "--enable-foo"),
        ("torch has CUDA Version=12.8 and torchvision has CUDA Version=13.0", "13.0"),
    ],
)
def test_a_line_names_its_thing(line: str, named: str) -> None:
    assert named in " ".join(names(line))
    assert named in told("a hint", line)


def test_nothing_is_named_twice_or_without_need() -> None:
    assert (
        told("lower --mem-fraction-static", "try to increase --mem-fraction-static")
        == "lower --mem-fraction-static"
    )
    assert told("a hint", "RuntimeError: it broke") == "a hint"


def test_a_long_line_is_quoted_about_its_cause() -> None:
    line = "error: " + "a hook of the container said no, " * 30 + "operation not permitted: unknown"
    cause = re.compile("operation not permitted")
    assert "not permitted" in clean(line, cause) and len(clean(line, cause)) <= 400
    assert clean(line).startswith("error: ") and "not permitted" not in clean(line)
