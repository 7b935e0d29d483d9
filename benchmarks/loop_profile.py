"""The compiled event loop's time by function and by file: ``loop_profile.py SCRIPT [ARGUMENT ...]``.

Runs a Python script under Linux's ``perf`` (Debian's ``linux-perf``), its compiled code with line numbers, and tells
with ``addr2line`` (Debian's ``binutils``) which function each sampled instruction comes from, before functions were put
into their callers. The script is compiled anew, in one process, which takes a minute and is not counted.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmark_tables import Table, say

SAMPLES_A_SECOND = 997
MOST_ROWS = 40


def run_recorded(folder: Path, script: str) -> None:
    """Run a script, its compiled code kept as object files, with the addresses of their functions."""
    from numba.core import codegen

    libraries: list[Any] = []
    begin = codegen.CodeLibrary.__init__

    def remember(library: Any, *args: Any, **options: Any) -> None:
        begin(library, *args, **options)
        libraries.append(library)

    codegen.CodeLibrary.__init__ = remember
    from ddlsched.engine.loop.compilation import compile_loop

    compile_loop()  # here, not by another process
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        functions = [function for library in libraries for function in compiled_functions(library, folder)]
        (folder / "functions.json").write_text(json.dumps(sorted(functions)))


def compiled_functions(library: Any, folder: Path) -> Iterator[tuple[int, int, int, str]]:
    """Yield address, size, place in the object file, and that file, of each function of a library."""
    content = getattr(library, "_compiled_object", None)
    if not content:
        return
    path = folder / f"{id(library)}.o"
    path.write_bytes(content)
    symbols = subprocess.run(["nm", "-S", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    for line in symbols.splitlines():
        parts = line.split()
        if len(parts) == 4 and parts[2] in "TtWw":
            address = library.codegen._engine._ee.get_function_address(parts[3])
            if address:
                yield address, int(parts[1], 16), int(parts[0], 16), str(path)


def samples(folder: Path) -> tuple[Counter[tuple[str, int]], int]:
    """Return how often each place of an object file was met, and how often anything else."""
    functions = json.loads((folder / "functions.json").read_text())
    starts = [function[0] for function in functions]
    met: Counter[tuple[str, int]] = Counter()
    elsewhere = 0
    command = ["perf", "script", "-i", str(folder / "perf.data"), "-F", "ip"]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split():
        address = int(line, 16)
        at = bisect.bisect(starts, address) - 1
        if at >= 0 and address < functions[at][0] + functions[at][1]:
            met[functions[at][3], functions[at][2] + address - functions[at][0]] += 1
        else:
            elsewhere += 1
    return met, elsewhere


def by_function(met: Counter[tuple[str, int]]) -> Counter[tuple[str, str]]:
    """Return the samples of each (function, file) of the sources."""
    counts: Counter[tuple[str, str]] = Counter()
    for path in {path for path, _ in met}:
        places = sorted(place for file, place in met if file == path)
        command = ["addr2line", "-e", path, "-f", *map(hex, places)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        for place, name, line in zip(places, lines[::2], lines[1::2], strict=True):
            file = "/".join(line.rsplit(":", 1)[0].split("/")[-2:])
            counts[readable(name), file] += met[path, place]
    return counts


def readable(name: str) -> str:
    """Return the Python name in a compiled function's name, which holds lengths before each of its parts."""
    parts = re.findall(r"(?<=\d)([A-Za-z_]\w*?)(?:B\d+v|12_3clocals)", name)
    return re.sub(r".*\d(?=[a-z_])", "", parts[0]) if parts else name[:40]


def main() -> None:
    if os.environ.get("LOOP_PROFILE"):
        sys.argv = sys.argv[1:]
        run_recorded(Path(os.environ["LOOP_PROFILE"]), sys.argv[0])
        return
    missing = [tool for tool in ("perf", "nm", "addr2line") if shutil.which(tool) is None]
    if missing or len(sys.argv) < 2:
        sys.exit(f"needs {', '.join(missing)}" if missing else __doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say("compiling, and running under perf")
        recording = f"perf record -q -F {SAMPLES_A_SECOND} -e cpu-clock -o {folder}/perf.data".split()
        child = {**os.environ, "LOOP_PROFILE": name, "NUMBA_DEBUGINFO": "1", "NUMBA_CACHE_DIR": name}
        subprocess.run([*recording, sys.executable, "-W", "ignore", __file__, *sys.argv[1:]], env=child, check=True)
        met, elsewhere = samples(folder)
        functions = by_function(met)
    whole = sum(functions.values())
    rows = [[function, file, 100 * count / whole] for (function, file), count in functions.most_common(MOST_ROWS)]
    compiled_s, other_s = whole / SAMPLES_A_SECOND, elsewhere / SAMPLES_A_SECOND
    title = f"{compiled_s:.1f} s in compiled code, {other_s:.1f} s elsewhere (compiling)"
    print(Table(title=title, columns=("function", "file", "% of compiled code"), rows=rows))


if __name__ == "__main__":
    main()
