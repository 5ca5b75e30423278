#!/usr/bin/env python3
"""Lay the stand-in into a directory tree as the virtual environment /opt/standin, with what checks read there.

    install.py ROOT [--torch-cuda 13.0] [--kernel-cuda 13.0] [--python 3.11] [--pair TARGET DRAFT]...

ROOT is a lab host's root or the upper directory of its overlay. Gives ROOT/opt/standin with bin/python3 (a link to the
guest's /usr/bin/python3), sglang 0.5.11 with a true RECORD, torch 2.11.0 and sglang-kernel 0.4.2 as far as their CUDA
builds can be read, and models/{target,draft,hybrid} for --model-path: config, tokenizer, weights that nobody reads.
--pair TARGET DRAFT: such a pair in ROOT/models, too.
"""

import argparse
import base64
import hashlib
import json
import os
import shutil
import struct
import sys
from typing import Dict, List

HERE = os.path.dirname(os.path.abspath(__file__))
PREFIX = "opt/standin"
SHAPE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
MODELS = {
    "target": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 4},
    "draft": {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "num_target_layers": 4,
        "block_size": 4,
        "dflash_config": {"target_layer_ids": [0, 1, 2], "mask_token_id": 511, "block_size": 4},
    },
    "hybrid": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
    },
}


def install(root: str, torch_cuda: str = "13.0", kernel_cuda: str = "13.0", python: str = "3.11") -> str:
    """Write the tree (an old one is replaced) and return ROOT/opt/standin. OSError if ROOT cannot be written."""
    home = os.path.join(root, PREFIX)
    if os.path.isdir(home):
        shutil.rmtree(home)
    site = os.path.join(home, "lib", "python" + python, "site-packages")
    os.makedirs(site)
    os.makedirs(os.path.join(home, "bin"))
    _write(
        os.path.join(home, "pyvenv.cfg"),
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}.2\n",
    )
    os.symlink("/usr/bin/python3", os.path.join(home, "bin", "python3"))
    os.symlink("python3", os.path.join(home, "bin", "python"))
    script = os.path.join(home, "bin", "sglang")
    _write(script, f"#!/{PREFIX}/bin/python3\nfrom sglang.cli.main import main\n\nmain()\n")
    os.chmod(script, 0o755)
    shutil.copytree(
        os.path.join(HERE, "sglang"),
        os.path.join(site, "sglang"),
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    _dist(
        site,
        "sglang",
        "0.5.11",
        ["sglang"],
        {"entry_points.txt": "[console_scripts]\nsglang = sglang.cli.main:main\n"},
    )
    tag = "+cu" + torch_cuda.replace(".", "")
    version = f"__version__ = '2.11.0{tag}'\ncuda = '{torch_cuda}'\nhip = None\n"
    _write(os.path.join(site, "torch", "version.py"), version)
    _write(os.path.join(site, "torch", "__init__.py"), "from torch.version import __version__\n")
    _dist(site, "torch", "2.11.0", ["torch"], {})
    _write(os.path.join(site, "sgl_kernel", "__init__.py"), "")
    library = os.path.join(site, "sgl_kernel", "sm90", "common_ops.abi3.so")
    os.makedirs(os.path.dirname(library))
    with open(library, "wb") as stream:
        stream.write(
            shared_object(
                ["libcudart.so." + kernel_cuda.split(".")[0], "libtorch.so", "libc10.so", "libc.so.6"]
            )
        )
    _dist(site, "sglang_kernel", "0.4.2+cu" + kernel_cuda.replace(".", ""), ["sgl_kernel"], {})
    for name, config in MODELS.items():
        checkpoint(os.path.join(home, "models", name), config)
    return home


def checkpoint(directory: str, config: Dict[str, object]) -> None:
    """A model directory that is whole as files go. Its one tensor is of no use."""
    _write(os.path.join(directory, "config.json"), json.dumps({**SHAPE, **config}, indent=1) + "\n")
    vocabulary = {"a": 0, "b": 1}
    _write(
        os.path.join(directory, "tokenizer.json"),
        json.dumps({"model": {"type": "BPE", "vocab": vocabulary}}) + "\n",
    )
    tensor = {"lm_head.weight": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
    head = json.dumps(tensor).encode()
    with open(os.path.join(directory, "model.safetensors"), "wb") as stream:
        stream.write(struct.pack("<Q", len(head)) + head + bytes(2))


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)


def _dist(site: str, name: str, version: str, packages: List[str], extra: Dict[str, str]) -> None:
    """A dist-info with a RECORD of the packages' files as they lie there (PEP 376: path, urlsafe sha256, size)."""
    info = f"{name}-{version}.dist-info"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: standin\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "INSTALLER": "pip\n",
        "top_level.txt": "".join(package + "\n" for package in packages),
        **extra,
    }
    for file, text in files.items():
        _write(os.path.join(site, info, file), text)
    paths = [
        os.path.join(at, file)
        for top in (*packages, info)
        for at, _, names in os.walk(os.path.join(site, top))
        for file in names
    ]
    rows = []
    for path in sorted(paths):
        with open(path, "rb") as stream:
            data = stream.read()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{os.path.relpath(path, site)},sha256={digest},{len(data)}\n")
    _write(os.path.join(site, info, "RECORD"), "".join(rows) + f"{info}/RECORD,,\n")


def shared_object(needed: List[str]) -> bytes:
    """A minimal ELF64 x86-64 shared object that only declares DT_NEEDED (elf(5)): enough for readelf -d."""
    names, offsets = b"\0", []
    for name in needed:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    sections = b"\0.dynamic\0.dynstr\0.shstrtab\0"
    dyn_at = 64 + 2 * 56
    count = len(needed) + 3
    str_at = dyn_at + count * 16
    shstr_at = str_at + len(names)
    sh_at = (shstr_at + len(sections) + 7) // 8 * 8
    size = sh_at + 4 * 64
    entries = [(1, at) for at in offsets] + [(5, str_at), (10, len(names)), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    ident = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, sh_at, 0, 64, 56, 2, 64, 4, 3)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    where = struct.pack("<IIQQQQQQ", 2, 4, dyn_at, dyn_at, dyn_at, len(dynamic), len(dynamic), 8)
    table = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    table += struct.pack("<IIQQQQIIQQ", 1, 6, 2, dyn_at, dyn_at, len(dynamic), 2, 0, 8, 16)
    table += struct.pack("<IIQQQQIIQQ", 10, 3, 2, str_at, str_at, len(names), 0, 0, 1, 0)
    table += struct.pack("<IIQQQQIIQQ", 18, 3, 0, 0, shstr_at, len(sections), 0, 0, 1, 0)
    body = header + load + where + dynamic + names + sections
    return body.ljust(sh_at, b"\0") + table


def main() -> None:
    """Command line; one sentence and exit 2 when ROOT is no directory or cannot be written."""
    parser = argparse.ArgumentParser(description="Install the SGLang stand-in as ROOT/opt/standin.")
    parser.add_argument("root")
    parser.add_argument("--torch-cuda", default="13.0", help="CUDA version that torch/version.py states")
    parser.add_argument(
        "--kernel-cuda", default="13.0", help="CUDA version that the kernel wheel was built for"
    )
    parser.add_argument("--python", default="3.11", help="the guest's Python, major.minor")
    parser.add_argument(
        "--pair",
        nargs=2,
        action="append",
        default=[],
        metavar=("TARGET", "DRAFT"),
        help="names in ROOT/models",
    )
    args = parser.parse_args()
    if not os.path.isdir(args.root):
        parser.error(f"{args.root} is no directory")
    try:
        sys.stdout.write(install(args.root, args.torch_cuda, args.kernel_cuda, args.python) + "\n")
        for names in args.pair:
            for name, role in zip(names, ("target", "draft")):
                checkpoint(os.path.join(args.root, "models", name), MODELS[role])
    except OSError as error:
        parser.error(f"cannot write the stand-in under {args.root}: {error}")


if __name__ == "__main__":
    main()
