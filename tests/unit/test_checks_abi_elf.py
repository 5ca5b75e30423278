"""Tiny shared objects, built here: what lacks a symbol, a library or a version is found, and named, without a GPU."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from healthy import HEALTHY_H200, WANTED, overlaid

from ddtree_agent import fatbin, probe_binaries
from ddtree_agent.elf_symbols import Elf
from ddtree_agent.loader import Loader, read_cache
from ddtree_ops.core.demangle import demangle, old_strings, short
from ddtree_ops.core.doctor import examine
from ddtree_ops.core.finding import Finding, Level

pytestmark = pytest.mark.tier("preflight")
SYM_NE = "_ZNK3c106SymInt6sym_neERKS0_"
LOGGER = "_ZN3c1013MessageLoggerC1EPKciib"
OLD = "_ZN5torch3jit17parseSchemaOrNameERKSsb"
NEW = "_ZN5torch3jit17parseSchemaOrNameERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEb"
Build = Callable[..., Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """build(path, defines, asks, *flags): a shared object, its symbols under the names given. In CI gcc is there."""
    assert shutil.which("gcc"), "scripts/prerequisites.sh installs gcc"
    root = tmp_path_factory.mktemp("elf")

    def make(name: str, defines: tuple[str, ...] = (), asks: tuple[str, ...] = (), *flags: str) -> Path:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f'void d{i}(void) __asm__("{one}"); void d{i}(void) {{}}' for i, one in enumerate(defines)]
        lines += [f'extern void a{i}(void) __asm__("{one}");' for i, one in enumerate(asks)]
        calls = " ".join(f"a{i}();" for i in range(len(asks)))
        lines.append(f"void entry_{abs(hash(name)) % 10**8}(void) {{ {calls} }}")
        source = path.with_suffix(".c")
        source.write_text("\n".join(lines) + "\n")
        words = ["gcc", "-shared", "-fPIC", "-nostdlib", str(source), "-o", str(path), *flags]
        subprocess.run(words, check=True, capture_output=True, timeout=120)
        return path

    return make


@pytest.fixture(scope="module")
def site(build: Build) -> Path:
    """A torch of four functions: c10 with the new string, as installed wheels lie."""
    path = build("site/torch/lib/libc10.so", (SYM_NE, NEW), (), "-Wl,-soname,libc10.so")
    build(
        "site/torch/lib/libtorch_cpu.so",
        ("_ZN2at4_ops3add4callEv",),
        (SYM_NE,),
        "-Wl,-soname,libtorch_cpu.so",
        "-Wl,--no-as-needed",
        str(path),
        "-Wl,-rpath,$ORIGIN",
    )
    (path.parent.parent / "__init__.py").write_text("")
    return path.parent.parent.parent


def kernel(build: Build, site: Path, name: str, asks: tuple[str, ...], *flags: str) -> Path:
    """A library of sgl_kernel that is linked with that torch."""
    made = build(
        f"site/sgl_kernel/{name}",
        (),
        asks,
        "-Wl,--no-as-needed",
        str(site / "torch/lib/libtorch_cpu.so"),
        str(site / "torch/lib/libc10.so"),
        "-Wl,-rpath-link," + str(site / "torch/lib"),
        *flags,
    )
    (made.parent / "__init__.py").write_text("")
    return made


def look(site: Path, file: Path, known: Mapping[str, str] = {}, library_path: str = "") -> dict[str, Any]:
    """The section `binaries` with that one kernel library."""
    origins = {"torch": str(site / "torch/__init__.py"), "sgl_kernel": str(file)}
    return probe_binaries.examine(
        origins, Loader("/bin/sh", library_path, dict(known)), time.monotonic() + 20
    )


def of(found: Mapping[str, Any], file: Path) -> dict[str, Any]:
    return next(one for one in found["libs"] if one["file"] == str(file))


def judged(found: Mapping[str, Any], rule: str) -> Finding:
    """The rule's word on a healthy host that has these binaries."""
    facts = {"binaries": {"torch": found["torch"], "libs": found["libs"], "host": found["host"]}}
    seen = [one for one in examine(overlaid(HEALTHY_H200, facts), WANTED) if one.rule == rule]
    assert len(seen) == 1, seen
    return seen[0]


def test_a_missing_torch_symbol_is_named_in_cpp(build: Build, site: Path) -> None:
    file = kernel(build, site, "lacking.so", (SYM_NE, LOGGER))
    found = look(site, file)
    assert of(found, file)["missing"] == [{"symbol": LOGGER, "from": "torch"}]
    said = judged(found, "torch-symbols")
    assert said.level is Level.BLOCK
    assert "c10::MessageLogger::MessageLogger(char const*, int, int, bool)" in said.evidence
    assert "undefined symbol" in said.evidence and "sglang-kernel" in str(said.remedy)


def test_a_library_that_finds_everything_is_fine(build: Build, site: Path) -> None:
    found = look(site, kernel(build, site, "whole.so", (SYM_NE, NEW, "_ZN2at4_ops3add4callEv")))
    for rule in ("torch-symbols", "string-abi", "library-path", "c-library"):
        assert judged(found, rule).level is Level.OK, rule


def test_the_string_of_before_cpp11_is_told_from_a_missing_function(build: Build, site: Path) -> None:
    found = look(site, kernel(build, site, "old.so", (OLD,)))
    assert found["torch"]["cxx11"] is True
    said = judged(found, "string-abi")
    assert said.level is Level.BLOCK and "_GLIBCXX_USE_CXX11_ABI=0" in said.evidence
    assert "torch::jit::parseSchemaOrName(std::string const&, bool)" in said.evidence
    assert judged(found, "torch-symbols").level is Level.OK


def test_a_weak_symbol_may_stay_undefined(build: Build, site: Path, tmp_path: Path) -> None:
    source = tmp_path / "w.c"
    source.write_text(
        f'extern void w(void) __asm__("{LOGGER}") __attribute__((weak)); void g(void) {{ if (w) w(); }}'
    )
    file = tmp_path / "w.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-nostdlib", str(source), "-o", str(file)], check=True, timeout=60
    )
    assert of(look(site, file), file)["missing"] == []


def test_the_other_cudart_is_named(build: Build, site: Path) -> None:
    runtime = build("stubs/libcudart.so.13", ("cudaMalloc",), (), "-Wl,-soname,libcudart.so.13")
    file = kernel(build, site, "cuda13.so", (SYM_NE,), "-Wl,--no-as-needed", str(runtime))
    found = look(site, file)
    assert [one["name"] for one in of(found, file)["lost"]] == ["libcudart.so.13"]
    said = judged(found, "library-path")
    assert said.level is Level.BLOCK and "built for CUDA 13, torch 2.9.1+cu128 for CUDA 12.8" in said.evidence


def test_a_library_is_found_where_the_units_loader_looks_and_nowhere_else(build: Build, site: Path) -> None:
    made = build(
        "site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", ("nvrtcVersion",), (), "-Wl,-soname,libnvrtc.so.12"
    )
    file = kernel(build, site, "nvrtc.so", (SYM_NE,), "-Wl,--no-as-needed", str(made))
    assert of(look(site, file), file)["lost"][0]["elsewhere"] == str(made)
    assert judged(look(site, file), "library-path").level is Level.BLOCK
    shell = look(site, file, library_path=str(made.parent))
    assert judged(shell, "library-path").level is Level.OK
    cache = look(site, file, {"libnvrtc.so.12": str(made)})
    assert judged(cache, "library-path").level is Level.OK
    runpath = kernel(
        build,
        site,
        "runpath.so",
        (SYM_NE,),
        "-Wl,--no-as-needed",
        str(made),
        "-Wl,-rpath,$ORIGIN/../nvidia/cuda_nvrtc/lib",
    )
    assert of(look(site, runpath), runpath)["lost"] == []


def test_an_older_library_that_comes_first_lacks_a_symbol(build: Build, site: Path) -> None:
    newer = build("newer/libnccl.so.2", ("ncclCommInit", "ncclMemAlloc"), (), "-Wl,-soname,libnccl.so.2")
    older = build("older/libnccl.so.2", ("ncclCommInit",), (), "-Wl,-soname,libnccl.so.2")
    file = kernel(build, site, "nccl.so", ("ncclMemAlloc",), "-Wl,--no-as-needed", str(newer))
    fine = look(site, file, library_path=str(newer.parent))
    assert judged(fine, "cuda-libraries").level is Level.OK
    said = judged(look(site, file, library_path=str(older.parent)), "cuda-libraries")
    assert said.level is Level.BLOCK
    assert (
        "ncclMemAlloc" in said.evidence
        and str(older) in said.evidence
        and "LD_LIBRARY_PATH" in str(said.remedy)
    )


def test_a_driver_function_is_looked_for_in_the_drivers_library(build: Build, site: Path) -> None:
    old = build("driver/libcuda.so.1", ("cuInit",), (), "-Wl,-soname,libcuda.so.1")
    file = kernel(build, site, "driver.so", ("cuInit", "cuGreenCtxStreamCreate"))
    found = look(site, file, {"libcuda.so.1": str(old)})
    assert of(found, file)["driver"] == ["cuGreenCtxStreamCreate"]
    assert judged(dict(found), "driver-symbols").level is Level.BLOCK
    assert of(look(site, file), file)["driver"] is None, "no libcuda: unknown, not fine"


def test_a_version_that_the_c_library_does_not_have(build: Build, site: Path, tmp_path: Path) -> None:
    def versioned(name: str, last: str) -> Path:
        script = tmp_path / f"{last}.map"
        script.write_text(f"GLIBCXX_3.4.30 {{ old; }};\n{last} {{ stdfun; }} GLIBCXX_3.4.30;\n")
        flags = ("-Wl,-soname,libstdc++.so.6", f"-Wl,--version-script={script}")
        return build(f"{name}/libstdc++.so.6", ("old", "stdfun"), (), *flags)

    new, old = versioned("cxx-new", "GLIBCXX_3.4.33"), versioned("cxx-old", "GLIBCXX_3.4.31")
    file = kernel(build, site, "cxx.so", ("stdfun",), "-Wl,--no-as-needed", str(new))
    assert judged(look(site, file, library_path=str(new.parent)), "c-library").level is Level.OK
    said = judged(look(site, file, library_path=str(old.parent)), "c-library")
    assert said.level is Level.BLOCK
    assert "GLIBCXX_3.4.33" in said.evidence and "GLIBCXX_3.4.31" in said.evidence


@pytest.mark.parametrize("style", ["sysv", "gnu", "both"])
def test_either_hash_table_is_read(build: Build, style: str) -> None:
    made = build(
        f"hash/{style}.so", tuple(f"name_{i}" for i in range(200)), ("absent",), f"-Wl,--hash-style={style}"
    )
    elf = Elf(str(made))
    assert all(elf.defines(f"name_{i}") for i in range(200))
    assert not elf.defines("name_200") and not elf.defines("absent")
    assert elf.undefined() == ["absent"]


def test_a_library_without_exports_still_tells_what_it_asks(build: Build, tmp_path: Path) -> None:
    script = tmp_path / "none.map"
    script.write_text("{ local: *; };\n")
    made = build("hash/none.so", ("hidden",), ("absent",), f"-Wl,--version-script={script}")
    assert Elf(str(made)).undefined() == ["absent"]


def test_damage_is_an_error_and_never_a_crash(build: Build, site: Path, tmp_path: Path) -> None:
    whole = kernel(build, site, "damaged.so", (SYM_NE,)).read_bytes()
    for cut in (0, 3, 64, 200, 600, len(whole) // 2):
        file = tmp_path / f"cut{cut}.so"
        file.write_bytes(whole[:cut])
        kept = of(look(site, file), file)
        assert kept.get("error") or kept["missing"] == [], cut
    for at in range(0, 900, 31):
        file = tmp_path / "flipped.so"
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        of(look(site, file), file)


def entry(kind: int, arch: int, flags: int = 0x11) -> bytes:
    """One part of a fat binary, as nvcc 13.0 writes it: 64 bytes of head, then its content."""
    return (
        struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, 32, 0, 0, 8, 1, arch, 0, 0, flags, 0, 0)
        + b"\xaa" * 32
    )


def test_architectures_are_read_from_fat_binaries(tmp_path: Path) -> None:
    one = entry(2, 80) + entry(2, 90, 0x100011) + entry(1, 90)
    two = entry(2, 75)
    body = b"".join(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(part)) + part for part in (one, one, two))
    source = tmp_path / "f.c"
    data = ",".join(str(byte) for byte in body)
    source.write_text(f'__attribute__((section(".nv_fatbin"), used)) const unsigned char f[] = {{{data}}};\n')
    file = tmp_path / "f.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-nostdlib", str(source), "-o", str(file)], check=True, timeout=60
    )
    assert fatbin.groups(Elf(str(file))) == [
        {"cubin": ["80", "90a"], "ptx": ["90"], "count": 2},
        {"cubin": ["75"], "ptx": [], "count": 1},
    ]
    plain = tmp_path / "plain.so"
    source.write_text("int x;")
    subprocess.run(["gcc", "-shared", "-nostdlib", str(source), "-o", str(plain)], check=True, timeout=60)
    assert fatbin.groups(Elf(str(plain))) is None


def test_the_loaders_cache_is_read() -> None:
    text = (
        "3 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n"
        "\tlibm.so.6 (libc6, AArch64) => /usr/lib/aarch64-linux-gnu/libm.so.6\n"
    )
    assert read_cache(text) == {
        "libcuda.so.1": "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "libm.so.6": "/usr/lib/aarch64-linux-gnu/libm.so.6",
    }


DEMANGLED = {
    SYM_NE: "c10::SymInt::sym_ne(c10::SymInt const&) const",
    OLD: "torch::jit::parseSchemaOrName(std::string const&, bool)",
    "_ZN2at4_ops5empty4callEN3c108ArrayRefINS2_6SymIntEEE": "at::_ops::empty::call(c10::ArrayRef<c10::SymInt>)",
    "_ZTVN3c1020intrusive_ptr_targetE": "vtable for c10::intrusive_ptr_target",
    "_ZTIN5torch8autograd4NodeE": "typeinfo for torch::autograd::Node",
    "_ZN3c10lsERSoNS_10DeviceTypeE": "c10::operator<<(std::ostream&, c10::DeviceType)",
    "_ZN3c106detail14torchCheckFailEPKcS2_jS2_": "c10::detail::torchCheckFail("
    "char const*, char const*, unsigned int, char const*)",
    "_ZNSt6vectorIN2at6TensorESaIS1_EED1Ev": "std::vector<at::Tensor, std::allocator<at::Tensor> >::~vector()",
    "_ZN3c1012FunctionTypeC2EPFvPvE": "c10::FunctionType::FunctionType(void (*)(void*))",
    "cuGreenCtxStreamCreate": "cuGreenCtxStreamCreate",
    "_ZN3c10": "_ZN3c10",  # cut off: left as it is
    "_ZN3c101fIJiDpT_EEvz": "_ZN3c101fIJiDpT_EEvz",
}


@pytest.mark.parametrize("symbol", DEMANGLED)
def test_names_are_demangled_or_left_alone(symbol: str) -> None:
    assert demangle(symbol) == DEMANGLED[symbol]


def test_old_and_new_strings_are_told_apart() -> None:
    assert old_strings(OLD) and not old_strings(NEW)
    assert (
        len(
            short(
                "_ZN3c108ListType3getERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEENS_4Type24SingletonOrSharedTypePtrIS9_EE",
                90,
            )
        )
        <= 90
    )


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="another demangler to compare with")
def test_the_same_as_binutils_or_untouched(build: Build) -> None:
    library = next(Path("/usr/lib").glob("*/libstdc++.so.6"), None) or next(
        Path("/lib64").glob("libstdc++.so.6")
    )
    names = sorted(
        {
            line.split()[-1].partition("@")[0]
            for line in subprocess.run(
                ["nm", "-D", "--defined-only", str(library)],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout.splitlines()
            if "_Z" in line
        }
    )
    said = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True, timeout=60
    )
    pairs = list(zip(names, said.stdout.splitlines(), strict=True))

    def plain(text: str) -> str:
        for letter in ("o", "i", "io"):
            text = text.replace(
                f"std::basic_{letter}stream<char, std::char_traits<char> >", f"std::{letter}stream"
            )
        text = text.replace(
            "std::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string"
        )
        return text.replace("::~basic_string", "::~string").replace(" ", "")

    read = [(name, demangle(name), theirs) for name, theirs in pairs if demangle(name) != name]
    same = [name for name, ours, theirs in read if plain(ours) == plain(theirs)]
    assert len(read) > 0.9 * len(pairs), (len(read), len(pairs))
    assert len(same) > 0.95 * len(read), [one for one in read if plain(one[1]) != plain(one[2])][:5]
