"""Rendering from committed files alone: goldens, the planned differences and no other, and what is refused."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddtree_ops.cli.app import run
from ddtree_ops.config.load import load_inventory
from ddtree_ops.config.model import HostConfig
from ddtree_ops.config.secrets import SecretRef
from ddtree_ops.core.errors import PreconditionFailed, UsageProblem
from ddtree_ops.core.modes import Modes, scan
from ddtree_ops.data import data_dir
from ddtree_ops.engine.series import load_series
from ddtree_ops.units.adopt import Adopted, adopt
from ddtree_ops.units.facts import Facts, UnitFact, dump_facts, load_facts
from ddtree_ops.units.raw import RawFile, RawUnit
from ddtree_ops.units.render import Rendered, render
from ddtree_ops.units.unit import Meaning, merge

pytestmark = pytest.mark.tier("main")
ROOT = Path(__file__).resolve().parent.parent.parent
OVERLAY = "/opt/ddtree/releases/@RELEASE@/overlay"
PY = "/opt/v/bin/python -m sglang.launch_server"


@pytest.fixture(scope="module")
def modes() -> Modes:
    return load_series(data_dir("engine_patches") / "sglang-0.5.11").modes


@pytest.fixture(scope="module")
def recorder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record", ROOT / "tests" / "goldens" / "record.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what is committed, to break."""
    for name in ("facts", "rendered"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "hosts.yaml", tmp_path)
    return tmp_path


def check(where: Path, *more: str) -> int:
    return run(["render", "--all", "--check", "--config", str(where / "hosts.yaml"), *more])


def test_the_committed_units_are_what_the_committed_facts_give(checkout: Path) -> None:
    assert check(checkout) == 0


@pytest.mark.parametrize("change", ["byte", "missing", "extra", "facts", "hosts"])
def test_drift_is_exit_5_with_a_diff(checkout: Path, change: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = checkout / "rendered" / "ct129" / "shadow.conf"
    if change == "byte":
        target.write_bytes(target.read_bytes().replace(b"budget 16", b"budget 17"))
    elif change == "missing":
        target.unlink()
    elif change == "extra":
        (checkout / "rendered" / "ct129" / "old.conf").write_text("[Service]\n")
    elif change == "facts":
        facts = checkout / "facts" / "ct129.yaml"
        facts.write_text(facts.read_text().replace("0.85", "0.80"))
    else:
        hosts = checkout / "hosts.yaml"
        hosts.write_text(hosts.read_text().replace("budget: 16", "budget: 32"))
    assert check(checkout) == 5
    said = capsys.readouterr().err
    assert "@@" in said and "\n+" in said and "next: ddtree-ops render --all" in said


def test_a_carriage_return_is_drift_too(checkout: Path) -> None:
    target = checkout / "rendered" / "ct129" / "shadow.conf"
    target.write_bytes(target.read_bytes().replace(b"\n", b"\r\n"))
    assert check(checkout) == 5


def test_the_facts_of_the_example_are_what_adoption_records(recorder: ModuleType) -> None:
    for name in ("ct129", "ct200"):
        path = ROOT / "facts" / f"{name}.yaml"
        assert path.read_text() == dump_facts(recorder.facts(name))
        assert load_facts(path) == recorder.facts(name)


def test_no_secret_of_the_example_is_committed_but_in_its_unit(recorder: ModuleType) -> None:
    for path in [*(ROOT / "facts").iterdir(), *(ROOT / "rendered").rglob("*.*")]:
        text = path.read_text()
        assert recorder.API_KEY not in text and "hf_golden" not in text


def meaning(item: Rendered) -> Meaning:
    return merge(RawUnit("sglang.service", RawFile("/etc/systemd/system/sglang.service", item.effective)))


def test_the_seeds_case_differs_only_as_planned(modes: Modes) -> None:
    host = load_inventory(ROOT / "hosts.yaml").hosts["ct129"]
    facts = load_facts(ROOT / "facts" / "ct129.yaml")
    base = render(host, facts, "baseline", modes)
    assert base.dropin is None and facts.unit.exec is not None and base.argv == facts.unit.exec.argv
    nextn = {"algorithm": "NEXTN", "num-steps": "3", "eagle-topk": "1", "num-draft-tokens": "4"}
    draft = {"--speculative-draft-model-path": "/models/qwen3.5-27b-dflash", "--disable-radix-cache": None}
    planned: dict[str, dict[str, str | None]] = {
        "dflash": {"--speculative-algorithm": "DFLASH", **draft},
        "shadow": {
            "--speculative-algorithm": "DDTREE",
            **draft,
            "--speculative-ddtree-shadow-linear": None,
            "--speculative-ddtree-budget": "16",
            "--speculative-ddtree-topk-cap": "4",
            "--speculative-ddtree-shadow-every": "8",
        },
    }
    for mode, wanted in planned.items():
        item = render(host, facts, mode, modes)
        before = {s.name: s.value for s in scan(base.argv, 3)}
        after = {s.name: s.value for s in scan(item.argv, 3)}
        gone = {f"--speculative-{k}": v for k, v in nextn.items()}
        assert {k: v for k, v in before.items() if after.get(k, "") != v} == gone
        assert {k: v for k, v in after.items() if before.get(k, "") != v} == wanted
        kept = [s.name for s in scan(base.argv, 3) if s.name in after and s.name not in wanted]
        assert [s.name for s in scan(item.argv, 3) if s.name in kept] == kept
        left, right = meaning(base), meaning(item)
        ours = {"DDTREE_RELEASE": "@RELEASE@"} | ({"PYTHONPATH": OVERLAY} if mode == "shadow" else {})
        assert right.environment.values == left.environment.values | ours
        changed = {k for k in left.settings["Service"] | right.settings["Service"]
                   if left.settings["Service"].get(k) != right.settings["Service"].get(k)}  # fmt: skip
        assert changed == {"ExecStart", "Environment"}
        assert left.settings["Unit"] == right.settings["Unit"]
        assert left.settings["Install"] == right.settings["Install"]


def test_the_dropin_over_the_operators_unit_is_the_effective_unit(modes: Modes, recorder: ModuleType) -> None:
    for host in load_inventory(ROOT / "hosts.yaml").hosts.values():
        facts = load_facts(ROOT / "facts" / f"{host.name}.yaml")
        text = (recorder.UNITS / f"{host.name}.service").read_text()
        for mode in ("dflash", "shadow"):
            item = render(host, facts, mode, modes)
            assert item.dropin is not None
            # Under another name than ours, so that the merge takes it in.
            over = RawFile("/etc/systemd/system/sglang.service.d/99-x.conf", item.dropin)
            merged = merge(
                RawUnit("sglang.service", RawFile("/etc/systemd/system/sglang.service", text), (over,))
            )
            assert merged.commands["ExecStart"] == meaning(item).commands["ExecStart"]
            assert list(merged.commands["ExecStart"][0].argv) == item.exec_argv
            assert merged.environment_files == meaning(item).environment_files
            secrets = {"HF_TOKEN"} & set(merged.environment.values)
            assert {k: v for k, v in merged.environment.values.items() if k not in secrets} == meaning(
                item
            ).environment.values


def facts_of(*lines: str, hybrid: bool = False, **more: Any) -> Facts:
    text = "[Service]\n" + "\n".join(lines) + "\n"
    fragment = {"path": "/etc/systemd/system/sglang.service", "text": text, "sha256": "0" * 64}
    result = adopt({"fragment": fragment, **more})
    assert isinstance(result, Adopted), result.reason
    facts = Facts(host="h", recorded="2026-01-01T00:00:00Z", service="sglang.service", unit=result.unit)
    return facts.model_copy(update={"model": facts.model.model_copy(update={"target_hybrid": hybrid})})


def host_of(**keys: Any) -> HostConfig:
    return HostConfig(name="h", draft="/d", **keys)


def shadow(modes: Modes, *lines: str, host: HostConfig | None = None, **more: Any) -> Rendered:
    return render(host or host_of(), facts_of(*lines, **more), "shadow", modes)


def test_the_units_own_pythonpath_comes_second(modes: Modes) -> None:
    assert (
        shadow(modes, "Environment=PYTHONPATH=/mine", f"ExecStart={PY}").env["PYTHONPATH"]
        == f"{OVERLAY}:/mine"
    )
    item = shadow(modes, f"ExecStart=/usr/bin/env PYTHONPATH=/mine {PY}")
    assert f"PYTHONPATH={OVERLAY}:/mine" in item.exec_argv
    item = shadow(modes, f"ExecStart=/usr/bin/env -i A=1 {PY}")
    assert item.exec_argv[2:5] == ["A=1", f"PYTHONPATH={OVERLAY}", "DDTREE_RELEASE=@RELEASE@"]


def test_in_a_shell_that_may_set_pythonpath_ours_is_put_first_there(modes: Modes) -> None:
    item = shadow(modes, f"ExecStart=/bin/bash -c 'export PYTHONPATH=/x; exec {PY} | tee /l'")
    assert (
        f'exec /usr/bin/env PYTHONPATH={OVERLAY}"$${{PYTHONPATH:+:$$PYTHONPATH}}" /opt/v/bin/python'
        in item.exec_argv[2]
    )
    assert item.exec_argv[2].endswith("| tee /l")
    assert "/usr/bin/env" not in shadow(modes, f"ExecStart=/bin/bash -c 'exec {PY}'").exec_argv[2]


@pytest.mark.parametrize(
    ("lines", "more", "words"),
    [
        (["EnvironmentFile=/etc/x.env"], {"environment_files": [
            {"path": "/etc/x.env", "text": "PYTHONPATH=/y\n", "sha256": "1" * 64}]}, "/etc/x.env sets PYTHONPATH"),
        (["UnsetEnvironment=PYTHONPATH"], {}, "removes PYTHONPATH"),
        (["TemporaryFileSystem=/opt:ro"], {}, "hides /opt/ddtree"),
        ([], {"dropins": [{"path": "/etc/systemd/system/sglang.service.d/90-x.conf", "sha256": "1" * 64,
                           "text": "[Service]\nEnvironment=PYTHONPATH=/x\n"}]}, "90-x.conf sorts after 50-ddtree.conf"),
    ],
)  # fmt: skip
def test_what_would_not_take_effect_is_refused(
    modes: Modes, lines: list[str], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(PreconditionFailed, match=words.replace(".", r"\.")):
        shadow(modes, *lines, f"ExecStart={PY}", **more)


def test_python_that_ignores_pythonpath_is_refused_where_it_matters(modes: Modes) -> None:
    line = "ExecStart=/opt/v/bin/python -E -m sglang.launch_server"
    with pytest.raises(PreconditionFailed, match="ignores PYTHONPATH"):
        shadow(modes, line)
    assert render(host_of(), facts_of(line), "dflash", modes).patched is False


def test_a_captured_key_comes_from_the_secrets_file_and_is_a_reference(modes: Modes) -> None:
    key = "sk-live-0123456789abcdef"
    item = shadow(modes, f"ExecStart={PY} --api-key {key}")
    assert item.dropin is not None and key not in repr(item)
    assert "--api-key ${DDTREE_API_KEY}" in item.dropin
    # Without a dash: where the file is missing the server must not come up without its key.
    assert "EnvironmentFile=/etc/ddtree/secrets-@RELEASE@.env\n" in item.dropin
    assert item.secrets == ["DDTREE_API_KEY"]


def test_the_operators_environment_is_added(modes: Modes) -> None:
    host = host_of(environment={"A": "50% $x", "TOKEN_X": SecretRef(secret="env:T"), "PYTHONPATH": "/p"})
    item = shadow(modes, f"ExecStart={PY}", host=host)
    assert item.env["A"] == "50% $x" and item.env["PYTHONPATH"] == f"{OVERLAY}:/p"
    assert item.secrets == ["TOKEN_X"] and 'Environment="A=50%% $x"' in (item.dropin or "")


def test_hosts_yaml_and_the_unit_must_agree(modes: Modes) -> None:
    with pytest.raises(PreconditionFailed, match=r"hosts\.yaml says tp 4, the adopted unit has --tp-size 2"):
        shadow(modes, f"ExecStart={PY} --tp-size 2", host=host_of(tp=4))
    shadow(modes, f"ExecStart={PY} --tp-size 2", host=host_of(tp=2))


def test_the_draft_of_a_dflash_baseline_is_kept_and_of_another_is_not(modes: Modes) -> None:
    bare = HostConfig(name="h")
    line = f"ExecStart={PY} --speculative-algorithm {{}} --speculative-draft-model-path /own"
    assert "/own" in render(bare, facts_of(line.format("DFLASH")), "shadow", modes).argv
    with pytest.raises(UsageProblem, match="needs the host key draft"):
        render(bare, facts_of(line.format("EAGLE")), "shadow", modes)


def test_a_host_without_a_service_gets_a_whole_unit(modes: Modes) -> None:
    facts = Facts(
        host="h", recorded="2026-01-01T00:00:00Z", service="sglang.service",
        unit=UnitFact.model_validate({"fragment": {"path": None}}),
    )  # fmt: skip
    host = host_of(interpreter="/opt/v/bin/python", model="/m/a b", tp=2)
    item = render(host, facts, "shadow", modes)
    seen = meaning(item)
    assert item.dropin is None and seen.fatal is None and seen.notes == []
    assert seen.service("KillMode") == "mixed" and seen.service("TimeoutStopSec") == f"{host.timeouts.stop:g}"
    assert item.argv[3:5] == ["--model-path", "/m/a b"]
    with pytest.raises(UsageProblem, match="needs the host key model"):
        render(host_of(interpreter="/opt/v/bin/python"), facts, "shadow", modes)


def test_errors_have_their_exit_codes(checkout: Path) -> None:
    config = ["--config", str(checkout / "hosts.yaml")]
    assert run(["render", "--mode", "tree", *config]) == 2
    assert run(["render", "--mode", "full", *config]) == 3
    assert run(["render", "--host", "ct12", *config]) == 2
    (checkout / "facts" / "ct200.yaml").unlink()
    assert run(["render", *config]) == 2


def test_units_are_written_where_asked(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = ["--config", str(checkout / "hosts.yaml")]
    assert run(["render", "--host", "ct129", "--mode", "shadow", "-o", str(out), *config]) == 0
    assert sorted(p.name for p in out.rglob("*.*")) == ["shadow.conf", "shadow.service"]
    assert (out / "ct129" / "shadow.conf").read_bytes() == (ROOT / "rendered/ct129/shadow.conf").read_bytes()


def test_a_captured_key_passes_the_check(checkout: Path) -> None:
    facts = facts_of(
        "Environment=HF_TOKEN=hf_0123456789abcdefghij",
        "ExecStartPost=/bin/hub $HF_TOKEN",
        f"ExecStart={PY} --api-key sk-live-0123456789abcdef --revision ${{HF_TOKEN}}",
    )
    (checkout / "facts" / "ct200.yaml").write_text(dump_facts(facts))
    hosts = checkout / "hosts.yaml"
    hosts.write_text(hosts.read_text().replace("ct200: {}", "ct200: {draft: /d}"))
    config = ["--config", str(hosts)]
    assert run(["render", *config]) == 0
    assert run(["render", "--check", *config]) == 0
    assert "DDTREE_API_KEY} stands for" in (checkout / "rendered" / "ct200" / "baseline.service").read_text()


def test_a_finding_without_drift_is_exit_3(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of("ExecStartPost=/bin/x $GONE", f"ExecStart={PY}")
    (checkout / "facts" / "ct200.yaml").write_text(dump_facts(facts))
    hosts = checkout / "hosts.yaml"
    hosts.write_text(hosts.read_text().replace("ct200: {}", "ct200: {draft: /d}"))
    config = ["--config", str(hosts)]
    assert run(["render", *config]) == 0
    assert run(["render", "--check", *config]) == 3
    assert "uses $GONE, which nothing sets" in capsys.readouterr().err
