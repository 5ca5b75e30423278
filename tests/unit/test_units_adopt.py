"""Adoption: the eight traps with their right answers, the forms seen in real units, no secret written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ops.core.errors import UsageProblem
from ddtree_ops.units.adopt import Adopted, Refused, adopt
from ddtree_ops.units.facts import ExecFact, Facts, FileFact, UnitFact, dump_facts, load_facts
from ddtree_ops.units.raw import from_wire

pytestmark = pytest.mark.tier("main")
TRAPS = Path(__file__).resolve().parent.parent / "fixtures" / "units"
HEAD = "/opt/v/bin/python"
PY = "/opt/v/bin/python -m sglang.launch_server"


def raw(text: str, **more: Any) -> dict[str, Any]:
    unit = more.pop("unit", "sglang.service")
    fragment = {"path": f"/etc/systemd/system/{unit}", "text": text, "sha256": "0" * 64}
    return {"fragment": fragment, "enabled": "enabled", **more}


def service(*lines: str, **more: Any) -> Adopted | Refused:
    return adopt(raw("[Service]\n" + "\n".join(lines) + "\n", **more))


def taken(*lines: str, **more: Any) -> Adopted:
    result = service(*lines, **more)
    assert isinstance(result, Adopted), result.reason
    return result


def argv(result: Adopted) -> list[str]:
    assert result.unit.exec is not None
    return result.unit.exec.argv


def reason(*lines: str, **more: Any) -> str:
    result = service(*lines, **more)
    assert isinstance(result, Refused), result.unit.exec
    return result.reason


def everything(result: Adopted) -> str:
    """All that adoption writes or says."""
    facts = Facts(host="h", recorded="2026-01-01T00:00:00Z", service="sglang.service", unit=result.unit)
    return dump_facts(facts) + repr(result) + "\n".join(result.notes)


@pytest.mark.parametrize("case", json.loads((TRAPS / "INDEX.json").read_text()), ids=lambda c: c["file"])
def test_the_traps_have_their_right_answers(case: dict[str, Any]) -> None:
    expected = case["expected"]
    text = (TRAPS / Path(case["file"]).name).read_bytes().decode()
    result = adopt(raw(text, dropins=case["dropins"]))
    assert result.outcome == expected["outcome"]
    if isinstance(result, Refused):
        assert result.reason == expected["reason"]
    reading = result.reading
    seen = {key: getattr(reading, key) for key in expected if hasattr(reading, key)}
    seen["flags"] = None if reading.flags is None else [list(pair) for pair in reading.flags]
    assert seen == {key: value for key, value in expected.items() if key not in ("outcome", "reason")}


@pytest.mark.parametrize(
    ("line", "wrapper", "outer"),
    [
        (f"{PY} --port 1", "none", None),
        ("/opt/v/bin/sglang serve --port 1", "none", None),
        ("/opt/v/bin/python -u -m sglang serve --port 1", "none", None),
        (f"/usr/bin/env A=1 B=2 {PY} --port 1", "launcher", ["/usr/bin/env", "A=1", "B=2", "@SERVER@"]),
        (
            f"/usr/bin/numactl --interleave=all -N 0 {PY} --port 1",
            "launcher",
            ["/usr/bin/numactl", "--interleave=all", "-N", "0", "@SERVER@"],
        ),
        (f"/usr/bin/taskset -c 0-7 {PY} --port 1", "launcher", ["/usr/bin/taskset", "-c", "0-7", "@SERVER@"]),
        (
            f"/opt/conda/bin/conda run --no-capture-output -n ml {PY} --port 1",
            "launcher",
            ["/opt/conda/bin/conda", "run", "--no-capture-output", "-n", "ml", "@SERVER@"],
        ),
        (f"/bin/sh -c 'exec {PY} --port 1'", "bash -c", ["/bin/sh", "-c", "exec @SERVER@"]),
        (
            f"/bin/bash -lc 'cd /x && source v/bin/activate && {PY} --port 1 2>&1 | tee -a /l'",
            "bash -c",
            ["/bin/bash", "-lc", "cd /x && source v/bin/activate && @SERVER@ 2>&1 | tee -a /l"],
        ),
    ],
)
def test_the_server_is_found_in_what_starts_it(line: str, wrapper: str, outer: list[str] | None) -> None:
    fact = taken(f"ExecStart={line}").unit.exec
    assert fact is not None
    assert fact.argv[-2:] == ["--port", "1"]
    assert (fact.wrapper, fact.outer) == (wrapper, outer)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ["ExecStart=/usr/bin/docker run --gpus all lmsys/sglang python -m sglang.launch_server"],
            "container (docker)",
        ),
        (["ExecStart=/opt/v/bin/python -m http.server"], "starts no SGLang server"),
        ([f"ExecStart=/usr/bin/nsys profile {PY}"], "started through nsys"),
        (["ExecStart=/bin/bash -c '$$V/bin/python -m sglang.launch_server < <(x) $$(y)'"], "in the middle"),
        (
            [f"ExecStart=/bin/bash -c '[ -n \"$$Q\" ] && P=1; {PY} --port $$P'"],
            "$P, whose value depends on the run",
        ),
        (
            ["ExecStart=/usr/bin/sudo -u x /opt/v/bin/python -m sglang.launch_server"],
            "sudo drops the environment",
        ),
        ([f"ExecStart={PY}", f"ExecStart={PY}"], "two start commands"),
        (["Restart=always"], "nothing to start"),
        ([f"ExecStart={PY} --x %F"], "unknown specifier %F"),
        ([f"ExecStart={PY}", "User=%i"], "User= names no valid user"),
        ([f"ExecStart={PY}", "Type=forking"], "Type=forking"),
        ([f"ExecStart={PY}", "WorkingDirectory=models"], "WorkingDirectory= is neither an absolute"),
        (
            ["ExecStart=$VENV/bin/python -m sglang.launch_server"],
            "neither an absolute path nor a plain file name",
        ),
        ([f"ExecStart=/bin/bash -c 'while true; do {PY}; done'"], "inside a loop"),
        ([f"ExecStart=/bin/bash -c '{PY} --port $$(cat /p)'"], "$(cat /p), known only when it runs"),
        ([f"ExecStart=/bin/bash -c 'source /x.sh; {PY} --port $$P'"], "the file /x.sh may set"),
        ([f"ExecStart=/bin/bash -c '{PY} & {PY}'"], "more than one SGLang server"),
        ([f"ExecStart={PY} --id $INVOCATION_ID"], "changes at every start"),
        (["User=a", f"ExecStart={PY} --model-path ${{HOME}}/m"], "of the unit's user"),
        (["RootDirectory=/srv", f"ExecStart={PY}"], "another root"),
        ([f"ExecStart={PY} --x %H"], "uses %H, whose value the probe did not report"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(lines: list[str], words: str) -> None:
    assert words in reason(*lines)


OWN_PLACE = """#!/usr/bin/env bash
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$HERE/venv/bin/activate"
cat <<EOF >/dev/null
python -m sglang.launch_server --port 5
EOF
exec "$HERE/venv/bin/python" -m sglang.launch_server --model-path "$HERE/m" "$@" > >(tee -a /l) 2>&1
"""


def test_a_script_that_looks_for_its_own_directory() -> None:
    found = taken("ExecStart=/usr/bin/nice -n 5 /opt/s/run.sh --port 1", scripts={"/opt/s/run.sh": OWN_PLACE})
    assert argv(found)[0] == "/opt/s/venv/bin/python"
    assert argv(found)[3:] == ["--model-path", "/opt/s/m", "--port", "1"]
    fact = found.unit.exec
    assert fact is not None and fact.outer is not None
    assert fact.outer[:5] == ["/usr/bin/nice", "-n", "5", "/usr/bin/env", "bash"]
    assert fact.outer[6].endswith("exec @SERVER@ > >(tee -a /l) 2>&1") and "BASH_SOURCE" not in fact.outer[6]


def test_a_shell_operator_without_a_shell_is_an_argument() -> None:
    found = taken(f"ExecStart={PY} --port 1 2>&1 | tee /l")
    assert argv(found)[-5:] == ["1", "2>&1", "|", "tee", "/l"]
    assert sum("systemd runs no shell" in note for note in found.notes) == 2


def test_variables_are_systemds_and_in_bash_what_systemd_leaves() -> None:
    found = taken(
        "Environment=PORT=30001 'EXTRA=--a 1 --b 2' PATH=/opt/v/bin:$PATH",
        f"ExecStart={PY} --port ${{PORT}} $EXTRA --lit x$PORT --dollar $$PORT $GONE",
    )
    assert argv(found)[3:] == [
        "--port",
        "30001",
        "--a",
        "1",
        "--b",
        "2",
        "--lit",
        "x$PORT",
        "--dollar",
        "$PORT",
    ]
    assert found.unit.environment["PATH"] == "/opt/v/bin:$PATH"
    assert any("$GONE is not set" in note for note in found.notes)


def test_inside_bash_systemd_takes_the_plain_braces_and_leaves_the_rest() -> None:
    script = (
        'ARGS=(--tp-size 2 --name "a b"); exec '
        + PY
        + ' --port ${X:-30002} "$${ARGS[@]}" --gone "${ARGS[@]}" --e "$$E"'
    )
    found = taken("Environment=E=val", f"ExecStart=/bin/bash -c '{script}'")
    # ${ARGS[@]} without the second $ is a variable of that odd name to systemd: it becomes nothing.
    assert argv(found)[3:] == [
        "--port",
        "30002",
        "--tp-size",
        "2",
        "--name",
        "a b",
        "--gone",
        "",
        "--e",
        "val",
    ]
    assert any("ARGS[@]" in note for note in found.notes)
    assert "X:-" not in argv(found)


def test_specifiers_of_the_system_manager() -> None:
    found = taken(
        "User=sg", "WorkingDirectory=%h/x",
        f"ExecStart={PY} --a %h --b %i --c %n --d %% --e %p --f %H",
        unit="sglang@big.service", specifiers={"H": "ct1"},
    )  # fmt: skip
    assert argv(found)[3::2] == ["--a", "--b", "--c", "--d", "--e", "--f"]
    assert argv(found)[4::2] == ["/root", "big", "sglang@big.service", "%", "sglang", "ct1"]
    assert found.unit.settings["WorkingDirectory"] == "/root/x"


def test_dropins_win_by_name_and_an_empty_assignment_clears() -> None:
    def dropin(path: str, text: str) -> dict[str, Any]:
        return {"path": path, "text": "[Service]\n" + text, "sha256": "1" * 64}

    found = taken(
        f"ExecStart={PY} --port 1",
        "Environment=A=1 B=2",
        dropins=[
            dropin("/etc/systemd/system/sglang.service.d/90-z.conf", "Environment=A=9\n"),
            dropin(
                "/run/systemd/system/sglang.service.d/20-y.conf", f"ExecStart=\nExecStart={PY} --port 2\n"
            ),
            dropin(
                "/usr/lib/systemd/system/sglang.service.d/20-y.conf", "ExecStart=\nExecStart=/bin/false\n"
            ),
            dropin("/etc/systemd/system/service.d/10-x.conf", "Environment=\nEnvironment=C=3\n"),
            dropin("/run/systemd/system/sglang.service.d/60-ddtree-trial.conf", "ExecStart=\n"),
        ],
    )
    assert argv(found)[-1] == "2"
    assert found.unit.environment == {"C": "3", "A": "9"}
    assert [Path(d.path or "").name for d in found.unit.dropins] == ["10-x.conf", "20-y.conf", "90-z.conf"]
    assert found.unit.dropins[1].sets == ["ExecStart"]


def test_settings_that_systemd_ignores_are_named() -> None:
    found = taken(
        f"ExecStart={PY}", "StartLimitIntervalSec=60", "Restart=sometimes", "Nice=5\n[Unit]\nNice=3\njunk"
    )
    text = "\n".join(found.notes)
    assert (
        "StartLimitIntervalSec= stands in [Service], where systemd ignores it: it belongs in [Unit]" in text
    )
    assert "Restart=sometimes is no value" in text
    assert "Nice= stands in [Unit]" in text and "without '='" in text
    assert found.unit.settings["Nice"] == "5" and "Restart" not in found.unit.settings


def env_file(path: str, text: str | None, optional: bool = False) -> dict[str, Any]:
    return {"path": path, "text": text, "sha256": None if text is None else "2" * 64, "optional": optional}


def test_environment_files_count_after_environment_and_keep_their_values() -> None:
    found = taken(
        "Environment=PORT=1 M=/a", "EnvironmentFile=-/etc/a.env", "EnvironmentFile=/etc/b.env",
        f"ExecStart={PY} --port $PORT --model-path ${{M}}",
        environment_files=[env_file("/etc/a.env", None, True), env_file("/etc/b.env", "export X=1\nPORT=2 # no\n")],
    )  # fmt: skip
    assert argv(found)[3:] == ["--port", "2", "#", "no", "--model-path", "/a"]
    assert [f.names for f in found.unit.environment_files] == [[], ["PORT"]]
    assert any("drops 'export X'" in note for note in found.notes)
    missing = reason(
        "EnvironmentFile=/etc/b.env", f"ExecStart={PY}", environment_files=[env_file("/etc/b.env", None)]
    )
    assert "missing and not optional" in missing
    unseen = reason("EnvironmentFile=-/etc/b.env", f"ExecStart={PY} --port $PORT")
    assert "uses $PORT, and /etc/b.env was not read" in unseen


SCRIPT = """#!/bin/bash
set -euo pipefail
cd "$(dirname "$0")"
if [ -f extra.sh ]; then echo extra; fi
MODEL=/models/m   # the model
export HF_TOKEN=hf_abcdefghijklmnopqrstuv
ARGS=(
  --model-path "$MODEL"
  --port "${PORT:-30000}"
)
exec python3 -m sglang.launch_server \\
  "${ARGS[@]}" --tp-size "$1" >>/var/log/s.log 2>&1
"""


def test_a_wrapper_script_is_read_and_inlined() -> None:
    found = taken("ExecStart=/opt/run.sh 2", scripts={"/opt/run.sh": SCRIPT})
    assert argv(found) == [
        "python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--port", "30000", "--tp-size", "2",
    ]  # fmt: skip
    fact = found.unit.exec
    assert fact is not None and fact.outer is not None and fact.wrapper == "script"
    assert fact.outer[:2] == ["/bin/bash", "-c"] and fact.outer[3:] == ["/opt/run.sh", "2"]
    assert "exec @SERVER@ >>/var/log/s.log 2>&1" in fact.outer[2]
    assert "export HF_TOKEN=${HF_TOKEN}" in fact.outer[2] and fact.secrets == {"HF_TOKEN": "captured"}
    assert "hf_abcdef" not in everything(found)


KEYS = ["sk-live-0123456789abcdef", "hf_0123456789abcdefghij", "s3cret-admin-value", "Pa55word!x"]


@pytest.mark.parametrize(
    "lines",
    [
        [f"ExecStart={PY} --api-key {KEYS[0]} --admin-api-key={KEYS[2]}"],
        [
            f"Environment=HF_TOKEN={KEYS[1]} OPENAI_API_KEY={KEYS[0]}",
            f"ExecStart={PY} --api-key ${{OPENAI_API_KEY}}",
        ],
        [f"ExecStart=/bin/bash -c '{PY} --api-key {KEYS[0]}; curl -H \"Authorization: Bearer {KEYS[2]}\" x'"],
        [f"ExecStart=/bin/bash -c 'KEY=1; DB_PASSWORD={KEYS[3]} exec {PY} --api-key {KEYS[0]} | tee /l'"],
        [
            f"ExecStart=/usr/bin/env HF_TOKEN={KEYS[1]} {PY}",
            f"ExecStartPost=/bin/curl --token {KEYS[0]} http://x",
        ],
        [f"SetCredential=k:{KEYS[2]}", f'ExecStart={PY} --json \'{{"k":"{KEYS[0]}"}}\''],
        [f"Environment=OK=1 MY_SECRET={KEYS[2]} NOT-VALID={KEYS[0]}", f"ExecStart={PY} --x {KEYS[2]}"],
        [f"ExecStart={PY} --api-key '{KEYS[0]}\\q'"],
    ],
)
def test_no_value_of_a_secret_is_written_or_said(lines: list[str]) -> None:
    text = everything(taken(*lines))
    assert not [key for key in KEYS if key in text]


def test_a_refusal_says_no_secret_either() -> None:
    said = reason(f"ExecStart=/bin/bash -c 'while :; do {PY} --api-key {KEYS[0]}; done'")
    said += reason(f"ExecStart=/bin/bash -c '{PY} --api-key {KEYS[0]} --x $$(y --token {KEYS[1]})'")
    assert not [key for key in KEYS if key in said]


def test_the_captured_key_is_named_and_kept_in_memory() -> None:
    found = taken(f"ExecStart={PY} --api-key {KEYS[0]}")
    assert argv(found)[-1] == "${DDTREE_API_KEY}"
    assert found.secrets["DDTREE_API_KEY"].reveal() == KEYS[0]


def test_a_host_without_a_service_and_a_masked_one() -> None:
    nothing = adopt({"fragment": None})
    assert isinstance(nothing, Adopted) and nothing.unit.fragment.path is None
    assert "masked" in reason("", show={"LoadState": "masked"})
    assert "template" in reason(f"ExecStart={PY}", unit="sglang@.service")
    assert "daemon-reload" in reason(f"ExecStart={PY}", show={"NeedDaemonReload": "yes"})


def test_the_prefixes_are_kept() -> None:
    fact = taken("ExecStart=-@:/opt/v/bin/python py -m sglang.launch_server --x $A").unit.exec
    assert fact is not None
    assert (fact.prefixes, fact.argv0) == ("-@", "py")
    assert fact.argv == ["/opt/v/bin/python", "-m", "sglang.launch_server", "--x", "$A"]


def test_what_the_agent_sends_is_taken_as_it_is() -> None:
    unit = from_wire(raw(f"[Service]\nExecStart={PY}\n", show={"Id": "other.service"}))
    assert unit.unit == "other.service" and unit.fragment is not None


def test_what_no_yaml_can_hold_and_what_only_the_manager_knows() -> None:
    assert "no UTF-8" in reason(f"ExecStart={PY} --x \\xff")
    assert "the manager's own environment" in reason("PassEnvironment=TIER", f"ExecStart={PY} --x $TIER")
    assert "private-use" in reason(f"ExecStart={PY} --x \ue000A\ue001")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(alphabet="-:# '\"\\%${}[]&*!|>@`\n\t\x07\x850 1aé~,?", max_size=8), max_size=5))
def test_facts_survive_their_file(tmp_path_factory: pytest.TempPathFactory, args: list[str]) -> None:
    words = [
        HEAD,
        "-m",
        "sglang.launch_server",
        *args,
        "yes",
        "1.0",
        "2026-01-01",
        "null",
        "1:30",
        "0x1",
        "-",
    ]
    unit = UnitFact(
        fragment=FileFact(), exec=ExecFact(argv=words), environment={"A": "\n".join(args), "Y": "no"}
    )
    facts = Facts(host="h", recorded="2026-01-01T00:00:00Z", service="s.service", unit=unit)
    path = tmp_path_factory.mktemp("facts") / "h.yaml"
    path.write_text(dump_facts(facts), encoding="utf-8")
    assert load_facts(path) == facts


def test_faults_in_facts_have_their_place(tmp_path: Path) -> None:
    path = tmp_path / "h.yaml"
    path.write_text(
        "schema_version: 1\nhost: h\nrecorded: x\nservice: s\nunit:\n  fragment: {path: null}\n  enabeld: x\n"
    )
    with pytest.raises(UsageProblem, match=r"h\.yaml:7:\d+: unit\.enabeld"):
        load_facts(path)
