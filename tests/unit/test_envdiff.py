"""What two hosts' packages mean side by side, and which of them travel: each rule with its healthy near miss."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ddtree_ops.core import envdiff, envset
from ddtree_ops.core.envdiff import Env
from ddtree_ops.core.errors import PreconditionFailed
from ddtree_ops.core.requirement import needed, satisfies

pytestmark = pytest.mark.tier("preflight")
Raw = dict[str, Any]


def dist(name: str, version: str, **more: Any) -> Raw:
    plain = {"path": f"/v/{name}.dist-info", "requires": [], "bound": False, "cudart": [], "pth": []}
    return {"name": name, "version": version, "local": version.partition("+")[2] or None, **plain, **more}


def raw(*dists: Raw, tag: str = "cu130", torch: str = "2.11.0", **more: Any) -> Raw:
    """A host with torch and a kernel wheel that fit, and these distributions."""
    cuda = f"{tag[2:4]}.{tag[4:]}"
    major = tag[2:4]
    mine = {item["name"]: item for item in (dist("torch", torch, bound=True), kernel("0.4.2", major), *dists)}
    builds = {
        "torch": {"version": f"{torch}+{tag}", "cuda": cuda, "path": "x"},
        "dists": [{key: item[key] for key in ("name", "version", "local", "path")} for item in mine.values()],
        "kernels": [
            {"file": "/v/sgl_kernel/a/common_ops.so", "needed": [f"libcudart.so.{n}"]}
            for n in mine["sglang-kernel"]["cudart"]
        ],
        "duplicates": {},
    }
    plain: Raw = {
        "interpreter": "/v/bin/python3", "python": "3.11.2", "soabi": "cpython-311-x86_64-linux-gnu",
        "platform": "linux-x86_64", "libc": ["glibc", "2.36"], "shadowed": {},
    }  # fmt: skip
    return {**plain, "dists": [*mine.values()], "builds": builds, **more}


def kernel(version: str, *majors: str) -> Raw:
    return dist("sglang-kernel", version, bound=True, cudart=[*majors])


def env(host: str = "ct129", *dists: Raw, **more: Any) -> Env:
    return envdiff.read(host, raw(*dists, **more))


def means(a: Env, b: Env) -> str:
    return "\n".join(envdiff.consequences(a, b))


def test_equal_hosts_have_no_difference_and_no_consequence() -> None:
    a, b = env("ct129"), env("ct200")
    assert all(row.same for row in envdiff.rows(a, b))
    assert envdiff.consequences(a, b) == []
    assert envdiff.differing(a, b) == []


def test_a_kernel_for_another_cuda_is_named_with_torch_and_its_tag() -> None:
    b = env("ct200", kernel("0.4.2+cu130", "13"), tag="cu128")
    said = (
        "ct200 has torch 2.11.0+cu128 and sglang-kernel 0.4.2+cu130 built for cu130: the kernel will not load"
    )
    assert said in envdiff.consequences(env(), b)
    untagged = env("ct200", kernel("0.4.2", "13"), tag="cu128")
    assert "sglang-kernel 0.4.2 built for CUDA 13: the kernel will not load" in means(env(), untagged)
    fits = env("ct200", kernel("0.4.2+cu128", "12"), tag="cu128")
    assert "will not load" not in means(env(), fits)


def test_any_binary_for_another_cuda_is_named() -> None:
    b = env("ct200", dist("deep-ep", "1.2", bound=True, cudart=["12"]))
    assert "deep-ep 1.2 built for CUDA 12: it will not load" in means(env(), b)
    both = env("ct200", dist("deep-ep", "1.2", bound=True, cudart=["12", "13"]))
    assert "deep-ep 1.2 built" not in means(env(), both)


def test_a_tag_or_parts_that_do_not_fit_are_named_with_the_host() -> None:
    tagged = env("ct200", dist("torchvision", "0.24+cu128"))
    assert "ct200: torchvision 0.24+cu128 against torch's CUDA 13.0" in means(env(), tagged)
    parts = env("ct200", dist("flashinfer-python", "0.6.8"), dist("flashinfer-cubin", "0.6.7"))
    assert "ct200: versions differ: flashinfer-cubin 0.6.7, flashinfer-python 0.6.8" in means(env(), parts)


@pytest.mark.parametrize("name", ["triton", "sglang", "flashinfer-python", "sglang-kernel"])
def test_a_difference_between_hosts_says_what_it_means(name: str) -> None:
    a, b = (dist(name, version, bound=True, cudart=["13"]) for version in ("1.0", "1.1"))
    assert f"ct129 has {name} 1.0" in means(env("ct129", a), env("ct200", b)).replace(
        " (needs libcudart.so.13)", ""
    )
    assert means(env("ct129", a), env("ct200", copy.deepcopy(a))) == ""


def test_torch_of_another_release_and_a_package_that_is_missing_are_named() -> None:
    a, b = env("ct129", dist("triton", "3.5")), env("ct200", torch="2.10.0")
    assert "ct129 has torch 2.11.0+cu130, ct200 2.10.0+cu130" in means(a, b)
    assert "ct200 lacks triton, which ct129 has (3.5)" in means(a, b)


def test_a_build_is_shown_where_the_version_does_not_say_it() -> None:
    bare = raw()
    bare["builds"]["torch"]["version"] = "2.11.0"
    rows = envdiff.rows(envdiff.read("ct129", bare), env("ct200", tag="cu128"))
    torch = next(row for row in rows if row.name == "torch")
    assert (torch.a, torch.b, torch.same) == ("2.11.0 (CUDA 13.0)", "2.11.0+cu128", False)


def test_cuda_bound_packages_come_first_after_the_interpreter() -> None:
    names = [row.name for row in envdiff.rows(env("a", dist("aiohttp", "3")), env("b"))]
    assert names == [
        "python",
        "interpreter ABI",
        "platform",
        "C library",
        "sglang-kernel",
        "torch",
        "aiohttp",
    ]


def test_a_document_that_does_not_fit_is_a_sentence() -> None:
    with pytest.raises(PreconditionFailed, match="does not fit"):
        envdiff.read("ct129", {"dists": [{}]})


BOUND = ["torch", "torchvision", "torchaudio", "triton", "sglang-kernel", "sgl-kernel", "flashinfer-python",
         "flashinfer-jit-cache", "nvidia-cublas-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-frontend", "apache-tvm-ffi",
         "cuda-python", "cupy-cuda12x", "nixl-cu12", "flash-attn", "deep-gemm", "torch-memory-saver"]  # fmt: skip


@pytest.mark.parametrize("name", BOUND)
def test_what_is_built_for_one_cuda_belongs_to_the_set(name: str) -> None:
    assert envdiff.is_bound(envdiff.read("a", raw(dist(name, "1"))).dists[name])


@pytest.mark.parametrize(
    "name", ["sglang", "numpy", "transformers", "nvidia-ml-py", "tritonclient", "torchmetrics"]
)
def test_what_is_not_stays(name: str) -> None:
    assert not envdiff.is_bound(envdiff.read("a", raw(dist(name, "1"))).dists[name])


def test_a_tag_or_a_binary_makes_a_package_part_of_the_set() -> None:
    plain, tagged = dist("mykernels", "1"), dist("mykernels", "1+cu130")
    linked = dist("mykernels", "1", bound=True)
    found = [envdiff.is_bound(env("a", one).dists["mykernels"]) for one in (plain, tagged, linked)]
    assert found == [False, True, True]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"python": "3.12.1"}, "Python is 3.11"),
        (
            {"soabi": "cpython-312-x86_64-linux-gnu"},
            "ABI is cpython-311-x86_64-linux-gnu, here it is cpython-312",
        ),
        ({"soabi": None}, "ABI"),
        ({"platform": "linux-aarch64"}, "platform is linux-x86_64, here it is linux-aarch64"),
        ({"libc": ["musl", "1.2"]}, "C library is glibc, here it is musl"),
        ({"libc": ["glibc", "2.31"]}, "ct200 has glibc 2.31, older than ct129's 2.36"),
    ],
)
def test_packages_that_cannot_run_there_are_refused_with_the_difference(change: Raw, named: str) -> None:
    with pytest.raises(PreconditionFailed, match=named) as caught:
        envset.match(env(), env("ct200", **change))
    assert caught.value.host == "ct200"


@pytest.mark.parametrize("change", [{}, {"python": "3.11.9"}, {"libc": ["glibc", "2.41"]}])
def test_a_patch_release_and_a_newer_c_library_are_no_hindrance(change: Raw) -> None:
    envset.match(env(), env("ct200", **change))


def test_the_whole_cuda_bound_set_travels_whatever_the_target_has() -> None:
    a = env("ct129", dist("triton", "3.5"), dist("numpy", "2.1"), dist("sglang", "0.5.11"))
    one = envset.choose(a, env("ct200", dist("triton", "3.5")))
    assert one.names == ("sglang-kernel", "torch", "triton")
    assert envset.choose(a, env("ct201", tag="cu128")).names == one.names


def test_of_what_the_set_requires_only_what_is_missing_or_not_allowed_travels() -> None:
    torch = dist(
        "torch", "2.11.0", bound=True, requires=["sympy>=1.13", "Jinja2", "dill; extra == 'x'", "gone"]
    )
    a = env("ct129", torch, dist("sympy", "1.13.3", requires=["mpmath<1.4,>=1.1"]), dist("mpmath", "1.3"),
            dist("jinja2", "3.1"), dist("dill", "1"))  # fmt: skip
    there = [dist("jinja2", "2.0"), dist("mpmath", "1.2")]
    assert envset.choose(a, env("ct200", *there, dist("sympy", "1.14"))).names == ("sglang-kernel", "torch")
    old = envset.choose(a, env("ct200", *there, dist("sympy", "1.12")))
    assert old.names == ("sglang-kernel", "sympy", "torch")
    none = envset.choose(a, env("ct200"))
    assert none.names == ("jinja2", "mpmath", "sglang-kernel", "sympy", "torch")


def test_the_engine_itself_never_travels() -> None:
    a = env(
        "ct129", dist("sglang", "0.5.11", bound=True), dist("flashinfer-python", "1", requires=["sglang"])
    )
    assert "sglang" not in envset.choose(a, env("ct200")).names


def test_a_package_that_only_site_packages_runs_stays_or_stops_the_sync() -> None:
    cutlass = dist("nvidia-cutlass-dsl", "4.4", pth=["nvidia_cutlass_dsl.pth"])
    a = env("ct129", cutlass)
    found = envset.choose(a, env("ct200", copy.deepcopy(cutlass)))
    assert "nvidia-cutlass-dsl" not in found.names
    assert "nvidia-cutlass-dsl 4.4 stays ct200's own" in found.left[0]
    for there in ([], [dist("nvidia-cutlass-dsl", "4.3")]):
        with pytest.raises(PreconditionFailed, match=r"nvidia_cutlass_dsl\.pth"):
            envset.choose(a, env("ct200", *there))


def test_without_torch_there_is_no_set() -> None:
    bare = raw()
    bare["dists"] = [dist("numpy", "2")]
    with pytest.raises(PreconditionFailed, match="no torch"):
        envset.choose(envdiff.read("ct129", bare), env("ct200"))


@pytest.mark.parametrize(
    ("version", "bounds", "within"),
    [
        ("1.13.3", ">=1.13", True), ("1.12", ">=1.13", False), ("1.13", ">=1.13,!=1.13.0", False), ("2.0", "<2", False),
        ("2.9.1+cu128", "==2.9.1", True), ("2.9.1", "==2.9.1+cu130", False), ("2.9.1", "==2.9.*", True),
        ("2.10", "==2.9.*", False), ("2.10", "!=2.9.*", True), ("1.4.5", "~=1.4", True), ("2.0", "~=1.4", False),
        ("1.4.5", "~=1.4.6", False), ("3", "", True), ("3", ">= 2 , <4", True), ("3", "@ file:///x", False),
        ("10.0", ">9", True), ("1.0", "===1.0", True),
    ],
)  # fmt: skip
def test_version_bounds(version: str, bounds: str, within: bool) -> None:
    assert satisfies(version, bounds) is within


def test_requirements_of_extras_are_left_out() -> None:
    texts = [
        "sympy (>=1.13.3)",
        "Typing_Extensions>=4",
        'opt ; extra == "o"',
        "triton[x]==3.5; os_name == 'p'",
    ]
    found = needed(texts)
    assert found == [("sympy", ">=1.13.3"), ("typing-extensions", ">=4"), ("triton", "==3.5")]
