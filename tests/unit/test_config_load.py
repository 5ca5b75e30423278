"""hosts.yaml: every fault at once and in its place, nothing read differently than it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_ops.config import ConfigProblem, Inventory, discover, load_inventory
from ddtree_ops.config.model import HostKeys
from ddtree_ops.config.template import INIT_TEMPLATE
from ddtree_ops.core.errors import UsageProblem

pytestmark = pytest.mark.tier("main")


def load(path: Path, text: str | bytes) -> Inventory:
    file = path / "hosts.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_inventory(file)


def faults(path: Path, text: str | bytes) -> list[str]:
    """The faults of `text` without the file's name, after checking what every ConfigProblem keeps."""
    with pytest.raises(ConfigProblem) as caught:
        load(path, text)
    error = caught.value
    assert error.exit_code == 2
    assert len(error.problems) == len(error.what.splitlines())
    lines = error.what.splitlines()
    assert all(line.startswith(f"{path}/hosts.yaml:") for line in lines)
    return [line.removeprefix(f"{path}/hosts.yaml:") for line in lines]


MANY = """\
version: 2
defaults:
  prot: 30000
  user: no
groups:
  h200: {tp: true, tp: 4}
hosts:
  ct129:
    groups: [h20O]
    port: 22:22
    service: sglang
    host_key: nope
    environment:
      HF_TOKEN: hf_abcdefghijklmnopqrstuvwxyz
      NCCL_DEBUG: 1
      API: {secret: sk-thisisthevalue00000}
    timeouts: {imprt: 1, weights: 0}
  "bad name": {}
  ct200:
  no: {budget: 0}
"""


def test_all_faults_at_once_each_in_its_place(tmp_path: Path) -> None:
    assert faults(tmp_path, MANY) == [
        "1:10: version: should be 1 (here: 2)",
        "3:3: defaults.prot: unknown key; did you mean port?",
        '4:9: defaults.user: no without quotes is true or false to some YAML readers: write "no"',
        "6:14: groups.h200.tp: should be a valid integer (here: true)",
        "6:20: groups.h200.tp: written twice: first in line 6",
        "9:14: hosts.ct129.groups[0]: no group is named h20O; did you mean h200?",
        '10:11: hosts.ct129.port: 22:22 without quotes is a number in base 60 to some YAML readers: write "22:22"',
        "11:14: hosts.ct129.service: write the whole unit name: sglang.service (here: sglang)",
        "12:15: hosts.ct129.host_key: must be strict, accept-new or a fingerprint SHA256:… as `ssh-keygen -lf`"
        " prints it (here: nope)",
        "14:17: hosts.ct129.environment.HF_TOKEN: a credential: write {secret: env:HF_TOKEN}, not its value",
        "16:21: hosts.ct129.environment.API.secret: a secret is a reference, `env:NAME` or `file:/path`, never the"
        " value itself",
        "17:16: hosts.ct129.timeouts.imprt: unknown key; did you mean import?",
        "17:35: hosts.ct129.timeouts.weights: should be greater than 0 (here: 0)",
        "18:3: hosts.bad name: not a name (letters, digits, . _ -)",
        '20:3: hosts.no: no without quotes is true or false to some YAML readers: write "no"',
        "20:16: hosts.no.budget: should be greater than or equal to 1 (here: 0)",
    ]


ONE = "version: 1\nhosts:\n  a:\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1:1: the file is empty"),
        ("# only a comment\n", "1:1: the file is empty"),
        ("- a\n", "1:1: must be a mapping"),
        ("version: 1\n", "1:1: hosts: missing: name at least one host"),
        ("hosts: {a: {}}\n", "1:1: version: missing: write `version: 1`"),
        ("version: 1\nhosts: {}\n", "2:8: hosts: no host: write at least one"),
        ("version: 1\nhosts:\n", "2:1: hosts: should be a valid dictionary (here: nothing)"),
        ("version: 1\nhosts:\n\ta: {}\n", "3:1: a tab: YAML is indented with spaces"),
        ("version: 1\nhosts:\n  a: {user: x: y}\n", "not YAML: "),
        ("version: 1\nhosts: [a\n", "not YAML: "),
        ("version: 1\n---\nversion: 1\n", "but found another document"),
        ("version: 1\nhosts: {a: {user: *x}}\n", "2:19: not YAML: found undefined alias 'x'"),
        (ONE + "    user: \x01\n", "4:11: a control character (0x01)"),
        (ONE.encode() + b"    user: caf\xe9\n", "4:14: not UTF-8: byte 0xe9"),
        (ONE.encode("utf-16"), "1:1: not UTF-8: byte 0xff"),
        (ONE + "    <<: {user: x}\n", "4:5: hosts.a: `<<` merges silently"),
        (
            ONE + "    user: !!python/name:os.system x\n",
            "4:11: hosts.a.user: the tag !!python/name:os.system is not used",
        ),
        (ONE + "    user: !vault x\n", "4:11: hosts.a.user: the tag !vault is not used"),
        (ONE + "    ? [x]\n    : y\n", "4:7: hosts.a: a key must be a word"),
        (ONE + "    port: 030000\n", "4:11: hosts.a.port: 030000 without quotes is an octal number"),
        (ONE + "    port: 30_000\n", "4:11: hosts.a.port: 30_000 without quotes is a number"),
        (ONE + '    port: "30000"\n', "4:11: hosts.a.port: should be a valid integer (here: 30000)"),
        (ONE + "    port: 30000.0\n", "4:11: hosts.a.port: should be a valid integer (here: 30000.0)"),
        (ONE + "    port: 70000\n", "4:11: hosts.a.port: should be less than or equal to 65535"),
        (ONE + "    user: 12\n", "4:11: hosts.a.user: should be a valid string (here: 12)"),
        (ONE + "    user:\n", "4:5: hosts.a.user: should be a valid string (here: nothing)"),
        (ONE + "    interpreter: python3\n", "4:18: hosts.a.interpreter: must be an absolute path"),
        (
            ONE + "    service: sglang@.service\n",
            "sglang@.service is a template: name an instance, such as sglang@main.service",
        ),
        (ONE + "    service: ../x.service\n", "4:14: hosts.a.service: not the name of a systemd service"),
        (ONE + "    environment: {A-B: x}\n", "4:19: hosts.a.environment.A-B: not a variable name"),
        (ONE + "    environment: {A: [x]}\n", "4:22: hosts.a.environment.A: must be text, or a reference"),
        (ONE + "    environment: {A: {secret: env:B, more: 1}}\n", "hosts.a.environment.A.more: unknown key"),
        (ONE + "    environment: {DEBUG: yes}\n", "4:26: hosts.a.environment.DEBUG: yes without quotes"),
        (ONE + "groups: {a: {}}\n", "3:3: hosts.a: a group has the same name"),
        (ONE + "  a:\n", "4:3: hosts.a: written twice: first in line 3"),
        (ONE + "    hosts: 1\n", "4:5: hosts.a.hosts: unknown key"),
    ],
)
def test_bad_files(tmp_path: Path, text: str | bytes, said: str) -> None:
    found = faults(tmp_path, text)
    assert any(said in line for line in found), found


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblem, match="cannot be read: No such file") as caught:
        load_inventory(tmp_path / "hosts.yaml")
    assert caught.value.next == "ddtree-ops init"
    with pytest.raises(ConfigProblem, match="is a directory"):
        load_inventory(tmp_path)


def test_aliases_that_expand_without_end_are_cut(tmp_path: Path) -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 9))
    assert any("too large" in line for line in faults(tmp_path, f"l0: &l0 x\n{levels}"))
    assert any("within itself" in line for line in faults(tmp_path, "a: &x [*x]\n"))
    assert any("nested too deeply" in line for line in faults(tmp_path, "[" * 5000))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('    user: "\\e[31mroot; x"\n', r"(here: \x1b[31mroot; x)"),
        ('    "po\\Lrt": 1\n', r"4:5: hosts.a.po\u2028rt: unknown key"),
        ('    groups: ["\\u202egpu"]\n', r"no group is named \u202egpu"),
        ('    service: "a\\nb"\n', r"(here: a\nb)"),
        ('    environment: {"A\\eB": x}\n', r"hosts.a.environment.A\x1bB"),
        ('    user: "grün d"\n', "(here: grün d)"),
    ],
)
def test_what_would_drive_a_terminal_is_shown_escaped(tmp_path: Path, text: str, said: str) -> None:
    (line,) = faults(tmp_path, f"version: 1\nhosts:\n  a:\n{text}")
    assert said in line
    assert line.isprintable()


@pytest.mark.parametrize("key", ["address", "user"])
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("-oProxyCommand=touch /tmp/x", "begins with a dash"),
        ("-v", "begins with a dash"),
        ("ct129;id", "a shell reads"),
        ("a`id`", "a shell reads"),
        ("a\\", "a shell reads"),
        ("a b", "a shell reads"),
        ("ct-129.lan", None),
        ("ct_129", None),
    ],
)
def test_what_ssh_would_take_for_an_option_is_refused(
    tmp_path: Path, key: str, value: str, why: str | None
) -> None:
    for around, place in (("defaults", "defaults"), ("groups:\n  g", "groups.g"), ("hosts:\n  a", "hosts.a")):
        text = f"version: 1\n{around}:\n    {key}: '{value}'\n" + (
            "" if "hosts" in around else "hosts: {b: {}}\n"
        )
        if why is None:
            load(tmp_path, text)
            continue
        (line,) = faults(tmp_path, text)
        assert f": {place}.{key}: " in line and why in line, line


def test_a_user_may_have_a_domain_and_a_host_may_not(tmp_path: Path) -> None:
    text = "version: 1\nhosts: {a: {%s: 'CORP\\me'}}\n"
    assert load(tmp_path, text % "user").hosts["a"].user == "CORP\\me"
    assert "a shell reads" in faults(tmp_path, text % "address")[0]


def test_addresses_of_every_kind_are_taken(tmp_path: Path) -> None:
    for value in ("10.0.0.9", "fe80::1%eth0", "2001:db8::9", "ct129.example.org", "münchen.example"):
        assert (
            load(tmp_path, f"version: 1\nhosts: {{a: {{address: '{value}'}}}}\n").hosts["a"].target == value
        )


def test_an_alias_is_read_where_it_stands(tmp_path: Path) -> None:
    text = "version: 1\nhosts:\n  a: {environment: &e {X: y}}\n  b: {environment: *e}\n"
    assert load(tmp_path, text).hosts["b"].environment == {"X": "y"}


@given(st.text(alphabet=st.sampled_from("ab:-{}[]&*!|>'\"%@`#, \n\t\x00é0159.~<?")))
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_text_is_a_traceback(tmp_path: Path, text: str) -> None:
    for body in (text, f"version: 1\nhosts:\n  a: {text}\n"):
        try:
            load(tmp_path, body)
        except ConfigProblem as error:
            assert error.problems


@pytest.mark.parametrize("key", sorted(HostKeys.model_fields))
def test_a_misspelt_key_is_placed_and_the_right_one_named(tmp_path: Path, key: str) -> None:
    typo = key[:-1] + ("x" if key[-1] != "x" else "y")
    (line,) = faults(tmp_path, f"version: 1\nhosts:\n  a:\n    {typo}: 1\n")
    assert line.startswith(f"4:5: hosts.a.{typo}: unknown key")
    assert key in line or key in ("tp",)  # two letters have no near neighbour


# What it means


def test_a_host_takes_defaults_then_groups_in_order_then_its_own(tmp_path: Path) -> None:
    inventory = load(
        tmp_path,
        "version: 1\n"
        "defaults: {budget: 1, topk: 1, tp: 1, user: d, environment: {A: d, B: d, C: d}, timeouts: {import: 1,"
        " stop: 1}}\n"
        "groups:\n"
        "  g1: {topk: 2, tp: 2, environment: {B: g1, C: g1}, timeouts: {stop: 2, cap: 2}}\n"
        "  g2: {tp: 3, environment: {C: g2}}\n"
        "hosts:\n"
        "  x: {groups: [g1, g2], user: x, draft: null}\n"
        "  y: {groups: [g2, g1]}\n"
        "  z:\n",
    )
    x, y, z = (inventory.hosts[n] for n in "xyz")
    assert (x.name, x.target, x.budget, x.topk, x.tp, x.user) == ("x", "x", 1, 2, 3, "x")
    assert x.environment == {"A": "d", "B": "g1", "C": "g2"}
    assert (x.timeouts.import_, x.timeouts.stop, x.timeouts.cap, x.timeouts.serve) == (1, 2, 2, 30)
    assert (y.tp, y.environment["C"]) == (2, "g1")
    assert (z.tp, z.topk, z.shadow_every, z.port) == (1, 1, 8, None)
    assert inventory.groups == {"g1": ("x", "y"), "g2": ("x", "y")}


def test_environment_values_are_the_text_that_stands_there(tmp_path: Path) -> None:
    values = "{A: 1, B: 1.50, C: true, D: 0x10, E: 'no', F: \"22:22\", G: 2026-01-01, H: ''}"
    host = load(tmp_path, f"version: 1\nhosts: {{a: {{environment: {values}}}}}\n").hosts["a"]
    assert host.environment == {
        "A": "1",
        "B": "1.50",
        "C": "true",
        "D": "0x10",
        "E": "no",
        "F": "22:22",
        "G": "2026-01-01",
        "H": "",
    }


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    assert load(tmp_path, b"\xef\xbb\xbf" + ONE.replace("\n", "\r\n").encode()).hosts["a"].port is None


def test_the_template_loads_and_its_comments_name_real_keys(tmp_path: Path) -> None:
    assert list(load(tmp_path, INIT_TEMPLATE).hosts) == ["ct129"]
    opened = "\n".join(
        line.replace("# ", "", 1) if line.strip().startswith("# ") and line.startswith(" ") else line
        for line in INIT_TEMPLATE.splitlines()
    )
    assert opened != INIT_TEMPLATE
    host = load(tmp_path, opened).hosts["ct129"]
    assert (host.port, host.ssh_port, host.timeouts.confirm) == (30000, 22, 60)


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("DDTREE_OPS_CONFIG", raising=False)
    with pytest.raises(UsageProblem, match=r"no hosts\.yaml: looked for") as caught:
        discover()
    assert caught.value.next == "ddtree-ops init"
    found = []
    for place in ("xdg/ddtree-ops/hosts.yaml", "ops/hosts.yaml", "hosts.yaml"):
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).touch()
        found.append(os.path.relpath(discover()))
    monkeypatch.setenv("DDTREE_OPS_CONFIG", "env.yaml")
    found += [str(discover()), str(discover(Path("flag.yaml")))]
    assert found == ["xdg/ddtree-ops/hosts.yaml", "ops/hosts.yaml", "hosts.yaml", "env.yaml", "flag.yaml"]


THREE = "version: 1\ngroups: {h200: {}, spare: {}}\nhosts: {ct129: {groups: [h200]}, ct200: {groups: [h200]}, db: {}}\n"


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["ct129"], ["ct129"]),
        (["db", "ct129"], ["ct129", "db"]),
        (["h200"], ["ct129", "ct200"]),
        (["ct*", "ct129"], ["ct129", "ct200"]),
        (["ct[12]?9"], ["ct129"]),
        (["*"], ["ct129", "ct200", "db"]),
    ],
)
def test_select(tmp_path: Path, patterns: list[str], names: list[str]) -> None:
    assert [h.name for h in load(tmp_path, THREE).select(patterns)] == names


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["ct192"], "no host or group is named ct192; did you mean ct129"),
        (["ct129", "x*", "h20"], "named x.*named h20; did you mean h200"),
        (["spare"], "no host or group is named spare"),
        (["CT129"], "no host or group is named CT129"),
        ([], "no host was named"),
    ],
)
def test_select_refuses(tmp_path: Path, patterns: list[str], said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        load(tmp_path, THREE).select(patterns)
