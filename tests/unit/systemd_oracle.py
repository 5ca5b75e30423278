"""systemd's own parsers, called in its shared library: the judge that our reader is held against."""

from __future__ import annotations

import ctypes
import tempfile
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from functools import lru_cache
from pathlib import Path

_PLACES = ("/usr/lib/x86_64-linux-gnu/systemd", "/usr/lib/aarch64-linux-gnu/systemd", "/usr/lib/systemd")
_CUNESCAPE, _UNESCAPE_RELAX, _UNQUOTE = 2, 4, 32
_LOOKUP = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_char_p, c_char_p, POINTER(c_void_p), POINTER(c_int), POINTER(c_void_p), c_void_p
)
_FOUND = ctypes.CFUNCTYPE(
    c_int, c_char_p, c_char_p, c_uint, c_char_p, c_uint, c_char_p, c_int, c_char_p, c_void_p, c_void_p
)
_libc = ctypes.CDLL(None)
_libc.fopen.restype = c_void_p
_libc.fclose.argtypes = [c_void_p]
_libc.free.argtypes = [c_void_p]


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """libsystemd-shared of release 252, whose internal calls are used here; None where it is not installed."""
    for place in _PLACES:
        path = Path(place) / "libsystemd-shared-252.so"
        if path.exists():
            lib = ctypes.CDLL(str(path))
            lib.log_set_max_level(0)
            lib.replace_env_argv.restype = POINTER(c_char_p)
            return lib
    return None


def _lib() -> ctypes.CDLL:
    lib = library()
    assert lib is not None
    return lib


def word(text: bytes, relaxed: bool, escapes: bool = True) -> tuple[int, bytes | None, int]:
    """extract_first_word: (result, word, characters used)."""
    buffer = ctypes.create_string_buffer(text)
    at = c_void_p(ctypes.addressof(buffer))
    out = c_void_p()
    flags = _UNQUOTE | (_CUNESCAPE if escapes else 0) | (_UNESCAPE_RELAX if relaxed else 0)
    got = _lib().extract_first_word(byref(at), byref(out), None, c_uint(flags))
    value = ctypes.string_at(out.value) if got > 0 and out.value else None
    used = len(text) if not at.value else at.value - ctypes.addressof(buffer)
    return got, value, used


def expand(argv: list[bytes], env: dict[bytes, bytes]) -> list[bytes]:
    """replace_env_argv."""
    words = (c_char_p * (len(argv) + 1))(*argv, None)
    pairs = (c_char_p * (len(env) + 1))(*(k + b"=" + v for k, v in env.items()), None)
    got = _lib().replace_env_argv(words, pairs)
    out = []
    while got[len(out)] is not None:
        out.append(got[len(out)])
    return out


def env_file(text: bytes) -> list[bytes] | None:
    """load_env_file: assignments, invalid ones included; None for an error."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        out = POINTER(c_char_p)()
        got = _lib().load_env_file(None, c_char_p(file.name.encode()), byref(out))
        if got < 0:
            return None
        found: list[bytes] = []
        while out and out[len(found)] is not None:
            found.append(out[len(found)])
        return found


def assignments(text: bytes) -> tuple[bool, list[tuple[str, str, str]]]:
    """config_parse: (accepted, [(section, key, value)]), every key of the three sections taken."""
    found: list[tuple[str, str, str]] = []

    def take(unit, file, line, section, section_line, key, ltype, value, data, user):  # type: ignore[no-untyped-def]
        found.append((section.decode(), key.decode(), (value or b"").decode("utf-8", "surrogateescape")))
        return 0

    taker = _FOUND(take)

    def lookup(table, section, key, func, ltype, data, user):  # type: ignore[no-untyped-def]
        func[0] = ctypes.cast(taker, c_void_p)
        ltype[0] = 0
        data[0] = None
        return 1

    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        stream = _libc.fopen(file.name.encode(), b"r")
        got = _lib().config_parse(
            None, c_char_p(file.name.encode()), c_void_p(stream), b"Unit\0Service\0Install\0\0", _LOOKUP(lookup),
            None, c_int(4), None, None,
        )  # fmt: skip
        _libc.fclose(stream)
    return got >= 0, found


def seconds(text: bytes) -> float | None:
    """parse_sec: the span in seconds, None where it is none."""
    out = ctypes.c_uint64()
    if _lib().parse_sec(c_char_p(text), byref(out)) < 0:
        return None
    return float("inf") if out.value == 2**64 - 1 else out.value / 1e6


def conf_files(names: list[tuple[str, str]], root: Path, dirs: list[str]) -> list[str]:
    """conf_files_list_strv over `dirs` under `root`, in which `names` (dir, file) are made."""
    for folder, name in names:
        (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        (root / folder.lstrip("/") / name).write_text("x")
    out = POINTER(c_char_p)()
    paths = (c_char_p * (len(dirs) + 1))(*(d.encode() for d in dirs), None)
    got = _lib().conf_files_list_strv(byref(out), b".conf", str(root).encode(), c_uint(0), paths)
    assert got >= 0
    found: list[str] = []
    while out and out[len(found)] is not None:
        found.append(out[len(found)].decode().removeprefix(str(root)))
    return found
