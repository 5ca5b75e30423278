"""The memory arithmetic of a draft tree, against figures worked out by hand, and the rules that use it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from healthy import HEALTHY_H200, WANTED, overlaid

from ddtree_ops.core.checks import memory as rules
from ddtree_ops.core.doctor import SECTIONS
from ddtree_ops.core.facts_live import parse
from ddtree_ops.core.finding import Finding, Level
from ddtree_ops.core.memory import (
    GIB,
    MIB,
    Fit,
    Need,
    Recurrent,
    budget,
    default_fraction,
    default_graphs,
    judge,
    remedies,
)

pytestmark = pytest.mark.tier("preflight")
H200 = 143771 * MIB
#: A 27B hybrid as Qwen3.5 is built: 48 GDN layers of 48 value and 16 key heads, 16 layers of full attention.
GDN = Recurrent(layers=48, heads=48, key=128, value=128, conv=2 * 16 * 128 + 48 * 128, kernel=4)
HYBRID = Need(
    total=H200, fraction=0.88, fraction_given=True, target=54 * 10**9, draft=3 * 10**9, attention_layers=16,
    draft_layers=5, kv=2 * 4 * 256, kv_heads=4, kv_bytes=2, vocab=248320, context=32768, width=33, running=8,
    graphs=8, index=8, mask=True, recurrent=GDN, state_slots=8,
)  # fmt: skip
#: Qwen3-8B with a tree of 256 nodes on stock triton, whose graphs keep indices for every row.
DENSE = Need(
    total=H200, fraction=0.88, fraction_given=True, target=16_381_470_720, draft=2_097_225_000, attention_layers=36,
    draft_layers=5, kv=2 * 8 * 128, kv_heads=8, kv_bytes=2, vocab=151936, context=262144, width=257, running=48,
    graphs=48, index=8, index_rows=True, mask=True,
)  # fmt: skip


def test_the_state_of_a_27b_hybrid_is_144_mib_a_node() -> None:
    ssm = 48 * 48 * 128 * 128 * 4
    assert ssm == 144 * MIB
    conv = 48 * 10240 * 3 * 2
    assert GDN.state(1) == ssm + conv
    assert GDN.state(2) == ssm // 2 + conv // 2
    assert dataclasses.replace(GDN, state_bytes=2).state(1) == ssm // 2 + conv


def test_a_27b_hybrid_by_hand() -> None:
    """8 requests x 33 rows fit one H200, 65 rows do not leave a pool, 48 requests never start."""
    found = budget(HYBRID)
    per_node = 144 * MIB + 2_949_120
    assert found.states == 8 * 33 * per_node == 40_641_232_896
    assert found.slots == 8 * per_node
    static = int((H200 - 600 * MIB - H200 // 230) * 0.88)
    assert found.static == static and found.weights == 54 * 10**9
    # 16 attention layers and 5 of the draft, K and V of 4 heads x 256 in bfloat16
    assert found.per_token == 2 * 4 * 256 * 2 * (16 + 5) == 86016
    assert found.tokens == (static - 54 * 10**9 - found.states - found.slots) // 86016
    assert judge(HYBRID)[0] is Fit.YES
    wider = dataclasses.replace(HYBRID, width=65)
    assert 54 * 10**9 + 8 * 65 * per_node > int(H200 * 0.88)
    assert judge(wider)[0] is Fit.EDGE  # 5 % of the checkpoint may not be loaded at all
    assert judge(dataclasses.replace(HYBRID, width=97))[0] is Fit.NO
    many = dataclasses.replace(HYBRID, width=16, running=48, graphs=48, state_slots=48)
    assert judge(many)[0] is Fit.NO
    assert any(flag.startswith("--max-running-requests 2") for flag in remedies(many))


def test_what_a_hybrid_is_told_fits_and_one_more_does_not() -> None:
    many = dataclasses.replace(HYBRID, width=16, running=48, graphs=48, state_slots=48)
    value = next(int(flag.split()[1]) for flag in remedies(many) if flag.startswith("--max-running"))
    small = dataclasses.replace(many, running=value, graphs=value, state_slots=value)
    assert judge(small)[0] is Fit.YES
    more = dataclasses.replace(many, running=value + 1, graphs=value + 1, state_slots=value + 1)
    assert judge(more)[0] is not Fit.YES


def test_the_graph_buffers_of_a_wide_tree_by_hand() -> None:
    """engine-notes 3.6: 7.5 GB of logits and 25.9 GB of indices at 48 requests, 257 rows, 262144 tokens."""
    found = budget(DENSE)
    assert found.logits == 48 * 257 * 151936 * 4 == 7_497_129_984
    assert found.indices == 48 * 257 * 262144 * 8 == 25_870_467_072
    assert found.masks == 48 * 257 * (262144 + 257)
    assert judge(DENSE)[0] is Fit.NO
    patched = dataclasses.replace(DENSE, index_rows=False)
    assert budget(patched).indices == 48 * 262144 * 8
    assert judge(dataclasses.replace(patched, width=65))[0] is Fit.YES


def test_what_real_servers_said_on_an_h200() -> None:
    """Full-size models, dummy weights (bench/preflight/results/memory-h200-2026-11-30.txt): tokens within 5 %."""
    dense = Need(
        total=H200, fraction=0.878, fraction_given=False, target=int(42.29 * GIB), draft=int(3.22 * GIB),
        attention_layers=64, draft_layers=5, kv=2 * 8 * 128, kv_heads=8, kv_bytes=2, vocab=151936, context=40960,
        width=65, running=48, graphs=48, index=8, mask=True,
    )  # fmt: skip
    assert judge(dense)[0] is Fit.YES
    assert budget(dense).tokens == pytest.approx(303_360, rel=0.05)
    hybrid = dataclasses.replace(
        HYBRID, fraction=0.878, fraction_given=False, target=int(51.05 * GIB), draft=int(3.24 * GIB), context=40960,
        width=16, running=28, graphs=28, state_slots=28,
    )  # fmt: skip
    assert judge(hybrid)[0] is not Fit.NO  # it started, with less than one request of full length
    assert budget(hybrid).tokens == pytest.approx(35_478, rel=0.05)
    for requests in (40, 48):  # "Not enough memory. Please try to increase --mem-fraction-static."
        more = dataclasses.replace(hybrid, running=requests, graphs=requests, state_slots=requests)
        assert judge(more)[0] is Fit.NO


def test_a_small_dense_model_by_hand() -> None:
    """1.7B on a 24 GB card: 3.4 GB of weights, 112 KiB a token with its draft."""
    small = Need(
        total=24564 * MIB, fraction=0.85, fraction_given=True, target=3_400_000_000, draft=400_000_000,
        attention_layers=28, draft_layers=3, kv=2 * 8 * 128, kv_heads=8, kv_bytes=2, vocab=151936, context=32768,
        width=16, running=48, graphs=24,
    )  # fmt: skip
    found = budget(small)
    assert found.per_token == 2 * 8 * 128 * 2 * 31 == 126_976
    static = int(((24564 - 600) * MIB - int(24564 * MIB / 230)) * 0.85)
    assert found.tokens == (static - 3_400_000_000) // 126_976 == 140_685
    assert judge(small)[0] is Fit.YES
    shared = dataclasses.replace(small, tp=2)
    assert (budget(shared).weights, budget(shared).per_token) == (1_700_000_000, 63_488)
    assert budget(dataclasses.replace(small, tp=16)).per_token == 126_976 // 8  # one head is the least
    assert budget(dataclasses.replace(small, kv_bytes=1)).per_token == 63_488
    assert budget(dataclasses.replace(small, pool_limit=32768)).tokens == 32768


@pytest.mark.parametrize(
    ("mib", "tp", "speculative", "fraction", "graphs"),
    [
        # 143771 MiB less 512, 8192 x 1.5, 256 x 2 and 128; with a draft 4096 more
        (143771, 1, False, 0.907, 256), (143771, 1, True, 0.878, 256),
        (24564, 1, True, 0.68, 24), (24564, 8, False, 0.806, 80),
    ],
)  # fmt: skip
def test_the_engines_own_fraction(mib: int, tp: int, speculative: bool, fraction: float, graphs: int) -> None:
    assert default_fraction(mib * MIB, tp, 1, speculative, None, None) == fraction
    assert default_graphs(mib * MIB, tp) == graphs


def cards(*mib: int, used: int = 0, visible: str | None = None) -> Any:
    rows = [SimpleNamespace(index=i, uuid=f"GPU-{i}", total=size, used=used) for i, size in enumerate(mib)]
    return SimpleNamespace(cards=tuple(rows), visible=visible, base=0, need=None)


def said(rule: str, facts: dict[str, Any], seen: Any = None, wanted: Any = WANTED) -> Finding:
    """The one finding of a rule of ours on the healthy document, with these GPUs."""
    live = parse(overlaid(HEALTHY_H200, facts), SECTIONS)
    live = dataclasses.replace(live, areas={**live.areas, "gpus": seen})
    one = next(one for one in rules.RULES if one.id == rule)
    found = one.judge(live.areas[one.section.name], live, wanted)
    assert len(found) == 1
    return found[0]


def flags(**given: Any) -> dict[str, Any]:
    return {"arguments": {"flags": {f"--{name.replace('_', '-')}": value for name, value in given.items()}}}


def test_the_healthy_pair_fits_two_h200() -> None:
    found = said("memory-fit", {}, cards(143771, 143771))
    assert found.level is Level.OK and "weights 8.2" in found.evidence


def test_without_the_gpus_memory_nothing_is_ok() -> None:
    assert said("memory-fit", {}).level is Level.WARN
    assert said("memory-fit", {}, cards(0, 143771)).level is Level.WARN
    unknown = said(
        "memory-fit", {"checkpoints": {"target": {"num_hidden_layers": None}}}, cards(143771, 143771)
    )
    assert unknown.level is Level.WARN and "layers" in unknown.evidence


def test_the_smallest_gpu_that_is_taken_decides() -> None:
    facts = flags(tp_size="1", context_length="16384")
    assert said("memory-fit", facts, cards(143771, 8192)).level is Level.BLOCK
    shown = cards(143771, 8192, visible="0")
    assert said("memory-fit", facts, shown).level is Level.OK


def test_a_tree_on_a_stock_backend_is_told_what_would_fit() -> None:
    facts = flags(
        speculative_algorithm="DDTREE", speculative_ddtree_budget="256", context_length="262144", tp_size="1",
        cuda_graph_max_bs="48", mem_fraction_static="0.88",
    )  # fmt: skip
    big = {"checkpoints": {"target": {"max_position_embeddings": 262144}}}
    stock = said("memory-fit", overlaid(facts, big), cards(143771))
    assert stock.level is Level.BLOCK and stock.remedy
    assert "graph indices 25.9" in stock.evidence and "--cuda-graph-max-bs" in stock.remedy
    slim = dataclasses.replace(WANTED, base={"srt/layers/attention/triton_backend.py": "a" * 64})
    smaller = overlaid(facts, flags(speculative_ddtree_budget="64"))
    assert said("memory-fit", overlaid(smaller, big), cards(143771), slim).level is Level.OK


def test_a_hybrid_is_told_how_many_requests_fit() -> None:
    target = {
        "hybrid": True, "layer_types": {"linear_attention": 48, "full_attention": 16}, "num_hidden_layers": 64,
        "num_key_value_heads": 4, "head_dim": 256, "linear_num_value_heads": 48, "linear_num_key_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    facts = {
        "checkpoints": {"target": target},
        "weights": {"target": {"bytes": 54 * 10**9}},
        **flags(tp_size="1", disable_radix_cache=True),
    }
    found = said("memory-fit", facts, cards(143771))
    assert found.level is Level.BLOCK and found.remedy
    assert "recurrent states" in found.evidence and "--max-running-requests" in found.remedy
    value = found.remedy.split("--max-running-requests ")[1].split()[0].rstrip(",")
    again = overlaid(facts, flags(max_running_requests=value))
    assert said("memory-fit", again, cards(143771)).level is Level.OK


def test_what_halves_on_the_way_in_does_not_block() -> None:
    """A float32 checkpoint, and a model that is quantised while it loads."""
    facts = flags(tp_size="1", context_length="8192", cuda_graph_max_bs="8")
    whole = {"weights": {"target": {"bytes": 32 * 10**9, "by_dtype": {"F32": 32 * 10**9}}}}
    assert said("memory-fit", overlaid(facts, whole), cards(32607)).level is Level.OK
    assert (
        said("memory-fit", overlaid(facts, overlaid(whole, flags(dtype="float32"))), cards(32607)).level
        is Level.BLOCK
    )
    asked = overlaid(facts, flags(quantization="fp8"))
    half = {"weights": {"target": {"bytes": 32 * 10**9, "by_dtype": {"BF16": 32 * 10**9}}}}
    assert said("memory-fit", overlaid(asked, half), cards(32607)).level is not Level.BLOCK


def test_memory_that_others_hold_while_the_service_is_stopped() -> None:
    stopped = {"service": {"active_state": "inactive"}}
    held = said("memory-fit", stopped, cards(143771, 143771, used=138000))
    assert held.level is Level.BLOCK and "are held" in held.evidence
    some = said("memory-fit", stopped, cards(143771, 143771, used=20000))
    assert some.level is Level.WARN and "shrinks" in some.evidence
    assert said("memory-fit", stopped, cards(143771, 143771, used=400)).level is Level.OK
    assert (
        said("memory-fit", {}, cards(143771, 143771, used=120000)).level is Level.OK
    )  # its own, until it stops


def test_a_load_needs_the_hosts_memory() -> None:
    """2 ranks, the largest file of 4 GB and 1 to 3 GB of process each: 10 to 14 GB."""
    low = said("load-memory", {"memory": {"available": 9 * 10**9}})
    assert low.level is Level.WARN  # the running server gives its own back
    stopped = {"memory": {"available": 9 * 10**9}, "service": {"active_state": "inactive"}}
    assert said("load-memory", stopped).level is Level.BLOCK
    near = {"memory": {"available": 12 * 10**9}, "service": {"active_state": "inactive"}}
    assert said("load-memory", near).level is Level.WARN
    cached = flags(enable_hierarchical_cache=True, hicache_size="60")
    assert said("load-memory", {**cached, "memory": {"limit": 100 * GIB}}).level is Level.BLOCK
    limit = said("load-memory", {"memory": {"limit": 8 * GIB}})
    assert limit.level is Level.BLOCK and "MemoryMax=" in str(limit.remedy)
    assert said("load-memory", {"memory": {"limit": 16 * GIB, "available": 15 * GIB}}).level is Level.OK


def test_what_the_engine_said_on_a_real_h200() -> None:
    """shared/h200, tiny models: 0.02 GB of states for 32 slots, 0.05 GB for 8 requests x 8 rows, K of 0.03 GB for 32768
    tokens, and a fraction of 0.91 by its own choice."""
    tiny = Recurrent(layers=3, heads=4, key=128, value=128, conv=2 * 2 * 128 + 4 * 128, kernel=4)
    ssm = 3 * 4 * 128 * 128 * 4
    assert tiny.state(1) == ssm + 3 * 1024 * 3 * 2
    assert round(ssm * 33 / GIB, 2) == 0.02 and round(ssm * 9 * 8 / GIB, 2) == 0.05
    need = dataclasses.replace(
        HYBRID, fraction=0.5, target=820 * MIB, draft=8 * MIB, attention_layers=1, draft_layers=2, kv=2 * 2 * 256,
        kv_heads=2, vocab=512, context=2048, width=8, graphs=8, recurrent=tiny, state_slots=32, pool_limit=32768,
    )  # fmt: skip
    found = budget(need)
    assert found.states == tiny.state(1) * 64 and found.slots == tiny.state(1) * 32
    assert found.tokens == 32768 and round(32768 * 4 * 2 * 64 * 2 / GIB, 2) == 0.03
    assert judge(need)[0] is Fit.YES
    assert default_fraction(H200, 1, 1, False, 8, 8192) == 0.91
    assert (
        judge(dataclasses.replace(need, fraction=0.0005))[0] is Fit.NO
    )  # `Not enough memory`, as it said there
