"""What the probe collects for the kinds that fresh public reports showed: each fact with its near miss."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from ddtree_agent import (
    inner_arguments,
    inner_model,
    inner_toolchain,
    kernel_log,
    probe_host,
    probe_unit_lint,
    unitfile,
)

pytestmark = pytest.mark.tier("preflight")


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["[1.0] Loading of module with unavailable key is rejected"], "unsigned"),
        (["[1.0] Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7"], "unsigned"),
        (
            [
                "[1.0] NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2b85)",
                "[1.0] NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
            ],
            "flavour",
        ),
        (
            [
                "[1.0] NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:25a0)",
                "[1.0] NVRM: installed in this system is not supported by the",
                "[1.0] NVRM: NVIDIA 520.56.06 driver release.",
            ],
            "unsupported",
        ),
        (
            [
                "[1.0] NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:1d01)",
                "[1.0] NVRM: installed in this system is not supported by open",
                "[1.0] NVRM: nvidia.ko because it does not include the required GPU",
            ],
            "flavour",
        ),
        (["[1.0] nvidia: module verification failed: signature and/or required key missing - tainting kernel"], None),
        (["[1.0] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04"], None),
    ],
)  # fmt: skip
def test_what_the_kernel_says_of_a_driver_that_cannot_start(lines: list[str], kind: str | None) -> None:
    assert [event["kind"] for event in kernel_log.events(lines)] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("/v/bin/python3 -m sglang.launch_server --port 1 && echo up", ["&&"]),
        ("/v/bin/python3 -m x >/var/log/x 2>&1 &", ["&", "2>&1", ">"]),
        ("/usr/bin/env A=1 /v/bin/python3 -m x | /usr/bin/logger", ["|"]),
        ("/bin/bash -lc cd /x && run", []),  # a shell reads it, after its own first word
        ("/v/bin/python3 -m x --stop '<|im_end|>' --name \"a && b\"", []),
        ("/v/bin/python3 -m x --stop <|im_end|> --rate >=3", []),
    ],
)
def test_words_for_a_shell_where_none_reads_them(value: str, words: list[str]) -> None:
    line = unitfile.Line("/u", 1, "Service", "ExecStart", value)
    assert unitfile.command(line, set())["shell"] == words


def test_a_group_that_no_database_has_is_told_and_ends_no_section() -> None:
    who = getpass.getuser()
    assert probe_host.user({"User": who, "Group": "ddtree-absent"})["missing_group"] == "ddtree-absent"
    probe_host.identity({"User": who, "Group": "ddtree-absent"})  # raised KeyError before
    assert probe_host.user({"User": who, "Group": "root"})["missing_group"] is None
    assert probe_host.user({"User": who})["missing_group"] is None
    assert probe_host.gid_of("1234") == 1234


def test_libraries_that_a_build_would_not_find_to_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_toolchain, "LINKED", ())
    monkeypatch.setattr(inner_toolchain.glob, "glob", lambda pattern: [])
    monkeypatch.delenv("LIBRARY_PATH", raising=False)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcudart.so").write_text("")  # as NVIDIA's wheels lay it
    assert inner_toolchain._unlinked(str(tmp_path)) == ["libcudart.so", "libcuda.so"]
    monkeypatch.setenv("LIBRARY_PATH", f"/nowhere:{tmp_path}/lib")
    assert inner_toolchain._unlinked(str(tmp_path)) == ["libcuda.so"]
    (tmp_path / "lib64" / "stubs").mkdir(parents=True)
    (tmp_path / "lib64" / "stubs" / "libcuda.so").write_text("")
    assert inner_toolchain._unlinked(str(tmp_path)) == []


def test_what_an_engine_s_text_says_of_its_limits(tmp_path: Path) -> None:
    srt = tmp_path / "sglang" / "srt"
    for name, text in {
        "server_args.py": 'raise ValueError("Currently ngram speculative decoding does not support dp attention.")\n'
        "self.enable_mixed_chunk = False\n",
        "layers/quantization/fp8_utils.py": "def can_auto_enable_marlin_fp8() -> bool:\n",
        "layers/attention/attention_registry.py": "if is_blackwell():\n    assert (\n"
        '        runner.server_args.attention_backend == "triton"\n'
        '        or runner.server_args.attention_backend == "fa4"\n'
        '    ), "triton or fa4 are the only backends for hybrid GDN models."\n',
    }.items():
        (srt / name).parent.mkdir(parents=True, exist_ok=True)
        (srt / name).write_text(text)
    seen = inner_arguments.engine_facts(str(tmp_path / "sglang"))
    assert (seen["dp_refused"], seen["mixed_chunk_off"], seen["fp8_marlin"]) == (["NGRAM"], True, True)
    assert seen["blackwell_hybrid"] == ["fa4", "triton"]
    other = inner_arguments.engine_facts(str(tmp_path))
    assert (other["dp_refused"], other["fp8_marlin"], other["blackwell_hybrid"]) == (None, None, None)


def test_a_chat_template_in_the_config_in_a_file_or_nowhere(tmp_path: Path) -> None:
    library = inner_model.Library([])
    config = tmp_path / "tokenizer_config.json"

    def told(*names: str) -> object:
        return library.tokenizer(str(tmp_path), list(names))["chat_template"]

    assert told("tokenizer.json") is None, "without a config nothing is known"
    config.write_text(json.dumps({"tokenizer_class": "X"}))
    assert told("tokenizer.json") is False
    assert told("tokenizer.json", "chat_template.jinja") is True
    assert told("tekken.json") is True
    config.write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert told("tokenizer.json") is True


def test_a_label_is_that_of_the_link_where_a_home_s_is_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {True: b"system_u:object_r:bin_t:s0\0", False: b"unconfined_u:object_r:user_home_t:s0\0"}
    monkeypatch.setattr(
        probe_unit_lint.os, "getxattr", lambda path, name, follow_symlinks: labels[follow_symlinks]
    )
    program = tmp_path / "python3"
    program.write_bytes(b"\x7fELF")
    assert probe_unit_lint.program(str(program))["label"] is None, "SELinux does not enforce here"
    monkeypatch.setattr(probe_unit_lint, "_enforcing", lambda: True)
    assert probe_unit_lint.program(str(program))["label"] == "user_home_t"
    labels[False] = b"system_u:object_r:bin_t:s0\0"
    assert probe_unit_lint.program(str(program))["label"] == "bin_t"

    def refused(*_: object, **__: object) -> bytes:
        raise OSError

    monkeypatch.setattr(probe_unit_lint.os, "getxattr", refused)
    assert probe_unit_lint.program(str(program))["label"] is None
