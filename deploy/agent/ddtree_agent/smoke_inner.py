"""The import smoke itself: sent over stdin into the engine's own interpreter, where nothing of the agent exists.

Prints `@smoke <JSON>` lines: {"step": …} before each thing that may die, {"done": report} at the end.
"""

import faulthandler
import importlib
import importlib.util
import json
import multiprocessing
import os
import re
import sys
import traceback
from typing import Any, Dict, List, Optional

#: Names the real cause where a later line only says that something did not load.
CAUSES = re.compile(
    r"undefined symbol|cannot open shared object|GLIBC|version .* does not match|no kernel image"
)
#: Faults of the machine, not of the tree: the parser looked for GPUs or for a model.
MACHINE = re.compile(
    r"(?i)\bcuda\b|\bgpu|nvidia|driver|accelerator|out of memory|HTTPSConnection|couldn.t connect"
)


def say(**fields: Any) -> None:
    """One framed line, at once: the next step may kill this process."""
    sys.stdout.write("@smoke " + json.dumps(fields) + "\n")
    sys.stdout.flush()


def first_fatal(error: BaseException) -> str:
    """The line that says why: the innermost exception of the chain that names a cause, else the error itself."""
    chain: List[BaseException] = []
    link: Optional[BaseException] = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    named = [one for one in chain if CAUSES.search(str(one))]
    return _line(named[-1] if named else error)


def _line(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    # A SyntaxError's first lines are place and source; its last one says what is wrong.
    line = text.splitlines()[-1] if isinstance(error, SyntaxError) else text.splitlines()[0]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{line} ({error.filename}:{error.lineno})"
    if frames and not frames[-1].filename.startswith("<"):
        return f"{line} ({frames[-1].filename}:{frames[-1].lineno})"
    return line


def origin(overlay: str) -> Dict[str, Any]:
    """Where the engine came from. Raises ImportError naming what shadows the overlay."""
    # Before the import: a package that shadows ours may fail to import for reasons of its own.
    spec = importlib.util.find_spec("sglang")
    if spec is None:
        raise ImportError(f"no sglang is found, not even the release's {overlay}/sglang: {_why(None)}")
    found = spec.origin
    if found and os.path.abspath(found).startswith(overlay + os.sep):
        return {"file": found}
    place = found or "a namespace package"
    raise ImportError(f"sglang is {place}, not the release's {overlay}/sglang: {_why(found)}")


def _why(found: Optional[str]) -> str:
    if sys.flags.ignore_environment:
        return "the interpreter runs with -E or -I, which ignores PYTHONPATH"
    here = os.getcwd()
    if found and os.path.dirname(os.path.dirname(os.path.abspath(found))) == here:
        name = os.path.basename(os.path.dirname(found))
        return f"the working directory {here} holds a {name}/ folder, which comes first under -m"
    return f"PYTHONPATH is {os.environ.get('PYTHONPATH', 'not set')}"


def shadowed(runtime: Optional[Dict[str, Any]]) -> None:
    """Raise ImportError naming a package of the release's runtime that would come from elsewhere."""
    for name in runtime["modules"] if runtime else []:
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or []) if spec else []
        found = (spec.origin or (places[0] if places else None)) if spec else None
        if runtime and not (found and os.path.realpath(found).startswith(runtime["site"] + os.sep)):
            raise ImportError(f"{name} is {found}, not the runtime's {runtime['site']}/{name}: {_why(found)}")


def foreign(overlay: str) -> List[str]:
    """Modules of the engine that came from elsewhere than the overlay, bytecode and links not resolved."""
    found = []
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        ours = name == "sglang" or name.startswith("sglang.")
        if path and ours and not os.path.abspath(path).startswith(overlay + os.sep):
            found.append(f"{name} from {path}")
    return found


def check(request: Dict[str, Any], who: str) -> Dict[str, Any]:
    """Origin and imports in this process. Returns {"ok", "stage", "first_fatal", "origin"}."""
    stage = "origin"
    report: Dict[str, Any] = {"ok": False, "stage": who + " " + stage, "first_fatal": None, "origin": None}
    try:
        report["origin"] = origin(request["overlay"])["file"]
        shadowed(request.get("runtime"))
        stage = "import"
        for name in ["sglang", *request["modules"]]:
            say(step=f"{who}: import {name}")
            importlib.import_module(name)
        stage = "origin"
        strangers = foreign(request["overlay"])
        if strangers:
            raise ImportError(
                f"{len(strangers)} modules do not come from the release: {', '.join(strangers[:3])}"
            )
    except BaseException as error:
        report.update(stage=who + " " + stage, first_fatal=first_fatal(error))
        return report
    report["ok"] = True
    return report


def arguments(argv: List[str]) -> Dict[str, Any]:
    """Parse the server's arguments with the new tree's own parser. Returns {"ok", "first_fatal", "note"}."""
    say(step="parse the server's arguments")
    text: List[str] = []

    class Tee:
        def write(self, part: str) -> int:
            text.append(part)
            return sys.__stderr__.write(part) if sys.__stderr__ else len(part)

        def flush(self) -> None:
            pass

    kept, sys.stderr = sys.stderr, Tee()
    try:
        from sglang.srt.server_args import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
            prepare_server_args,
        )

        prepare_server_args(list(argv))
    except SystemExit as error:
        lines = [line for line in "".join(text).splitlines() if "error:" in line]
        return {
            "ok": False,
            "first_fatal": lines[0] if lines else f"the parser ended with {error.code}",
            "note": None,
        }
    except BaseException as error:
        line = first_fatal(error)
        if isinstance(error, (RuntimeError, OSError)) and MACHINE.search(line):
            return {"ok": True, "first_fatal": None, "note": f"arguments parse; not judged further: {line}"}
        return {"ok": False, "first_fatal": line, "note": None}
    finally:
        sys.stderr = kept
    return {"ok": True, "first_fatal": None, "note": None}


def expand(argv: List[str]) -> List[str]:
    """`${NAME}` in arguments, from the environment, as systemd would (systemd.service(5), command lines)."""
    return [re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m.group(1), ""), arg) for arg in argv]


def main(request: Dict[str, Any], source: str) -> None:
    """Child and main process import side by side; then the arguments are parsed here."""
    if sys.path and sys.path[0] == "" and request["path0"] != "cwd":
        sys.path[0] = request["path0"]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    # exec is importable in the child as it is: no file of ours has to lie on the host.
    child = context.Process(target=exec, args=(source, {"__name__": "smoke", "JOB": request, "PIPE": theirs}))
    child.start()
    theirs.close()
    report = check(request, "main")
    if report["ok"] and request.get("argv") is not None:
        parsed = arguments(expand(request["argv"]))
        report["note"] = parsed["note"]
        if not parsed["ok"]:
            report.update(ok=False, stage="arguments", first_fatal=parsed["first_fatal"])
    below = _answer(child, ours) if report["ok"] else {"ok": True, "origin": None}
    child.kill()
    child.join()
    origins = {"main": report.pop("origin"), "child": below["origin"]}
    if report["ok"] and not below["ok"]:
        report.update(ok=False, stage=below["stage"], first_fatal=below["first_fatal"])
    say(done=dict(report, origin=origins))


def _answer(child: Any, pipe: Any) -> Dict[str, Any]:
    try:
        answer: Dict[str, Any] = pipe.recv()
        return answer
    except EOFError:
        child.join()
        why = f"the spawned process ended with {child.exitcode} and without a report"
        return {"ok": False, "stage": "child import", "first_fatal": why, "origin": None}


def run(names: Dict[str, Any]) -> None:
    """Begin, if this text was started as a smoke and not imported: RAW in the main process, PIPE in the child."""
    if "PIPE" not in names and "RAW" not in names:
        return
    faulthandler.enable()
    if "PIPE" in names:
        try:
            names["PIPE"].send(check(names["JOB"], "child"))
        except BrokenPipeError:
            pass  # the main process died: its own last words count, not ours
    else:
        main(json.loads(names["RAW"]), names["SOURCE"])
    sys.stdout.flush()
    # Engine modules leave threads and exit hooks behind: the answer is out, so go.
    os._exit(0)


run(globals())
