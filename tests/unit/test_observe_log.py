"""Following a log: files through rotation and truncation, the journal through its follower."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_agent.observe_log import FileLog, JournalLog, Lines, NoLog, follow, mark

pytestmark = pytest.mark.tier("main")


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lines_end_at_newline_and_carriage_return_and_keep_their_halves() -> None:
    lines = Lines()
    assert lines.take(b"one\ntw") == ["one"]
    assert lines.take(b"o\r 50%\r100%\n") == ["two", " 50%", "100%"]


def test_a_characters_bytes_may_arrive_apart() -> None:
    lines, bar = Lines(), "█ 1/4\n".encode()
    assert lines.take(bar[:2]) == []
    assert lines.take(bar[2:]) == ["█ 1/4"]


def test_the_last_words_of_a_dead_process_need_no_newline() -> None:
    lines = Lines()
    assert lines.take(b"Killed") == []
    assert lines.take(b"") == []
    assert lines.take(b"") == ["Killed"]


def test_a_file_is_followed_from_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    write(path, "old run\n")
    log = follow("x", f"file:{path}", mark(f"file:{path}"))
    write(path, "new run\n")
    assert log.read() == ["new run"]
    assert log.read() == []
    log.close()


def test_a_file_that_the_start_makes_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log = follow("x", f"file:{path}", mark(f"file:{path}"))
    assert log.read() == []
    write(path, "first\n")
    assert log.read() == ["first"]
    log.close()


def test_a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    write(path, "a\n")
    log = FileLog(str(path))
    assert log.read() == ["a"]
    write(path, "b\n")
    path.rename(tmp_path / "x.log.1")
    write(path, "c\n")
    assert log.read() == ["b", "c"]
    log.close()


def test_a_truncated_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    write(path, "a long line of the old run\n")
    log = FileLog(str(path))
    log.read()
    path.write_text("new\n")
    assert log.read() == ["new"]
    log.close()


def test_a_file_replaced_between_mark_and_start_is_all_new(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    write(path, "old\n")
    place = mark(f"file:{path}")
    path.rename(tmp_path / "x.log.1")
    write(path, "new one\n")
    log = follow("x", f"file:{path}", place)
    assert log.read() == ["new one"]
    log.close()


def test_no_log_is_silence() -> None:
    log = follow("x", "none")
    assert isinstance(log, NoLog) and log.read() == []
    log.close()


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A journalctl that prints the file `entries` and then waits, as -f does; its arguments go to `argv`."""
    tool = tmp_path / "bin" / "journalctl"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/argv\ncat {tmp_path}/entries\n[ -e {tmp_path}/once ] || exec sleep 60\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    yield tmp_path


def entries(folder: Path, *items: dict[str, Any]) -> None:
    text = "".join(json.dumps({"__CURSOR": f"c{number}", **item}) + "\n" for number, item in enumerate(items))
    (folder / "entries").write_text(text)


def read_until(log: JournalLog, count: int) -> list[str]:
    found: list[str] = []
    for _ in range(400):
        found += log.read()
        if len(found) >= count:
            break
        time.sleep(0.02)
    return found


def test_the_journal_gives_messages_in_all_their_forms(journalctl: Path) -> None:
    bar = list("\r 25%|█ 1/4\r 50%|██ 2/4".encode())
    entries(
        journalctl,
        {"MESSAGE": "plain", "_PID": "12"},
        {"MESSAGE": bar, "_PID": "12"},
        {"MESSAGE": None},
        {"MESSAGE": "sglang.service: Main process exited, code=exited", "_PID": "1"},
    )
    log = follow("sglang.service", "journal", {"cursor": "c"})
    assert read_until(log, 4) == [
        "plain",
        " 25%|█ 1/4",
        " 50%|██ 2/4",
        "sglang.service: Main process exited, code=exited",
    ]
    log.close()
    argv = (journalctl / "argv").read_text().split()
    assert {"--after-cursor=c", "-a", "_SYSTEMD_UNIT=sglang.service"} <= set(argv)


def test_lines_of_the_run_before_are_left_out(journalctl: Path) -> None:
    entries(
        journalctl,
        {"MESSAGE": "old engine", "_PID": "12", "_SYSTEMD_INVOCATION_ID": "old"},
        {"MESSAGE": "old exited", "_PID": "1", "INVOCATION_ID": "old", "_SYSTEMD_INVOCATION_ID": "systemd"},
        {"MESSAGE": "new engine", "_PID": "99", "_SYSTEMD_INVOCATION_ID": "new"},
    )
    log = follow("x", "journal", {"cursor": "c"}, "old")
    assert read_until(log, 1) == ["new engine"]
    log.close()


def test_a_follower_that_dies_is_started_again_behind_what_it_gave(journalctl: Path) -> None:
    (journalctl / "once").touch()
    entries(journalctl, {"MESSAGE": "a"}, {"MESSAGE": "b"})
    log = follow("x", "journal", {"cursor": "first"})
    assert read_until(log, 2)[:2] == ["a", "b"]
    read_until(log, 2)
    log.close()
    assert "--after-cursor=c1" in (journalctl / "argv").read_text()


def test_the_mark_of_a_journal_is_its_last_cursor_or_the_time(journalctl: Path) -> None:
    (journalctl / "once").touch()
    entries(journalctl, {"MESSAGE": "a"})
    assert mark("journal") == {"cursor": "c0"}
    (journalctl / "entries").write_text("")
    assert set(mark("journal")) == {"since"}
