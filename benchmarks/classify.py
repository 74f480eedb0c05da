"""How fast logs are judged: ``python -m benchmarks.classify [--gate]``.

The search for all signatures over long logs, a typical log through the whole of `classify`, a file of 1 GB, and the
same signatures with Python's `re`, each tried on every line. CPU time of one core, so that a neighbour on the machine
is not taken for slowness. The aims: 100 MB/s, 1 s for the GB, 20 ms for the typical log. --gate fails by what a slow
machine does not change: the ratios to Python's `re`, and the GB beside a log of 64 MB in memory.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from profiler.findings import Finding
from prolog_epilog.failures.classify import classify
from prolog_epilog.failures.matcher import Matcher
from prolog_epilog.failures.reading import read_log
from prolog_epilog.failures.signature import Rules, load
from prolog_epilog.failures.text import LogText

MB: Final = 1 << 20
LEAST_MB_S: Final = 100.0
MOST_SECONDS: Final = 1.0
MOST_MS: Final = 20.0
LEAST_OVER_LOOP: Final = 1000.0
"""The search is that many times as fast as the loop with `re`, on each format."""
LEAST_TYPICAL_OVER_LOOP: Final = 20.0
MOST_GIGABYTE_SHARE: Final = 0.5
"""Of the time that a search of the whole GB would take: it is read at its ends."""

CRASH: Final = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/ada/train.py", line 214, in <module>
[rank3]:     main()
[rank3]:   File "/home/ada/train.py", line 180, in main
[rank3]:     loss = model(batch["input_ids"].cuda(), labels=batch["labels"].cuda()).loss
[rank3]:   File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1553, in _wrapped_call_impl
[rank3]:     return self._call_impl(*args, **kwargs)
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of \
79.15 GiB of which 1.02 GiB is free.
W0814 06:19:19.501000 2211 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 2240 closing signal \
SIGTERM
E0814 06:19:20.100000 2211 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 3 \
(pid: 2243) of binary: /opt/env/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
srun: error: n17: task 0: Exited with exit code 1
"""


def _tqdm(random: Random, step: int) -> str:
    return (
        f"\rEpoch 3: {step % 100:3d}%|{'█' * (step % 20)}{' ' * (20 - step % 20)}| {step}/99999 "
        f"[{step // 60:02d}:{step % 60:02d}<1:02:11,  {random.uniform(1, 9):.2f}it/s, loss={random.uniform(1, 9):.3f}]"
    )


FORMATS: Final[dict[str, Callable[[Random, int], str]]] = {
    "Megatron": lambda random, step: (
        f" [2026-08-14 06:{step // 60 % 60:02d}:{step % 60:02d}] iteration {step:8d}/  500000 | consumed samples: "
        f"{step * 512:12d} | elapsed time per iteration (ms): {random.uniform(900, 1100):.1f} | learning rate: 3.0E-04 "
        f"| global batch size:   512 | lm loss: {random.uniform(2, 3):.6E} | loss scale: 1.0 | grad norm: "
        f"{random.uniform(0, 1):.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    ),
    "tqdm": _tqdm,
    "Hugging Face": lambda random, step: (
        f"{{'loss': {random.uniform(1, 3):.4f}, 'grad_norm': {random.uniform(0, 2):.12f}, 'learning_rate': 4.9e-05, "
        f"'epoch': {step / 1000:.2f}}}\n"
    ),
    "absl": lambda random, step: (
        f"I0814 06:{step // 60 % 60:02d}:{step % 60:02d}.123456 140737 train_loop.py:{random.randrange(90, 99)}] "
        f"step={step} loss={random.uniform(1, 3):.5f} steps_per_sec={random.uniform(1, 9):.2f}\n"
    ),
    "8 ranks, srun -l": lambda random, step: (
        f"{step % 8}: INFO:trainer:step {step} | loss {random.uniform(1, 9):.4f} | "
        f"{random.randrange(2000, 40000)} tok/s | mem {random.uniform(10, 70):.1f} GiB\n"
    ),
    "warnings": lambda random, step: (
        f"step {step} loss {random.uniform(1, 9):.4f}\n"
        if step % 10
        else "/opt/env/lib/python3.11/site-packages/torch/optim/lr_scheduler.py:143: UserWarning: Detected call of "
        "`lr_scheduler.step()` before `optimizer.step()`.\n  warnings.warn(\n"
    ),
}


def progress(name: str, size: int) -> bytes:
    """A log of that many bytes that went well: 1 MB of lines as the tool prints them, over and over."""
    random, step, lines, length = Random(name), 0, [], 0
    while length < min(size, MB):
        step += 1
        lines.append(FORMATS[name](random, step).encode())
        length += len(lines[-1])
    block = b"".join(lines)
    return (block * (size // len(block) + 1))[:size].rpartition(b"\n" if b"\n" in block else b"\r")[0] + b"\n"


def typical(name: str) -> bytes:
    """Some hundred lines, and a crash at the end."""
    random = Random(name)
    return ("".join(FORMATS[name](random, step) for step in range(1, 300)) + "\n" + CRASH).encode()


def seconds(what: Callable[[], object], times: int = 5) -> list[float]:
    """CPU seconds of each of several runs, after one that fills what is kept."""
    what()
    found = []
    for _ in range(times):
        began = time.process_time()
        what()
        found.append(time.process_time() - began)
    return found


def search_speed(search: Matcher, name: str, size: int) -> float:
    """MB/s from bytes to hits, the cleaning of the text included."""
    data = progress(name, size)
    return size / MB / statistics.median(seconds(lambda: search.hits(LogText.of(name, data)), 3))


def _judged(data: bytes, rules: Rules) -> Finding:
    return classify([LogText.of("a.log", data)], rules=rules)


def whole_speed(rules: Rules, name: str, size: int) -> float:
    """MB/s from bytes to a finding."""
    data = progress(name, size - len(CRASH)) + CRASH.encode()
    return size / MB / statistics.median(seconds(partial(_judged, data, rules), 3))


def typical_ms(rules: Rules) -> list[float]:
    """Milliseconds from bytes to a finding, of each format several times."""
    found = []
    for name in FORMATS:
        judge = partial(_judged, typical(name), rules)
        found += [1e3 * each for each in seconds(judge, 9)]
    return found


@contextmanager
def gigabyte() -> Iterator[Path]:
    """A file of 1 GB without holes, a crash at its end; removed after."""
    with tempfile.NamedTemporaryFile(prefix="gsub-bench-", suffix=".log") as stream:
        block = progress("Megatron", 16 * MB)
        for _ in range(64):
            stream.write(block)
        stream.write(CRASH.encode())
        stream.flush()
        yield Path(stream.name)


def gigabyte_seconds(rules: Rules) -> tuple[float, str]:
    """Seconds by the clock from a path to a finding, the best of three; and the reason found."""
    with gigabyte() as path:
        found = []
        for _ in range(3):
            began = time.perf_counter()
            text = read_log(path)
            assert isinstance(text, LogText), text
            reason = classify([text], rules=rules).reason
            found.append(time.perf_counter() - began)
    return min(found), reason


def plain_loop_speed(rules: Rules, data: bytes) -> float:
    """MB/s of what one would write first: every pattern compiled with `re`, searched on every line."""
    patterns = []
    for signature in rules.signatures:
        try:
            patterns.append(re.compile(signature.pattern))
        except re.error:  # RE2 says it in another way
            continue
    lines = data.decode(errors="replace").splitlines()
    began = time.process_time()
    for line in lines:
        for pattern in patterns:
            pattern.search(line)
    return len(data) / MB / (time.process_time() - began)


_START: Final = """
import time
began = time.perf_counter()
from profiler.findings import Finding
from prolog_epilog.failures.classify import classify
from prolog_epilog.failures.text import LogText
imported = time.perf_counter()
from prolog_epilog.failures.signature import load
rules = load()
loaded = time.perf_counter()
classify([LogText.of("a", b"step 1\\n")], rules=rules)
first = time.perf_counter()
classify([LogText.of("a", b"step 1\\n")], rules=rules)
print(imported - began, loaded - imported, first - loaded - (time.perf_counter() - first))
"""


def start_ms() -> tuple[float, float, float]:
    """Milliseconds, each the best of five fresh processes: the imports, the rules, the first search's automata."""
    runs = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True)
        runs.append([1e3 * float(part) for part in done.stdout.split()])
    imports, rules, automata = (min(each) for each in zip(*runs, strict=True))
    return imports, rules, automata


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures; with --gate, 1 if one is not good enough."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.classify", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--gate", action="store_true", help="fail where a figure is not good enough")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    parser.add_argument("--mb", type=int, default=64, help="size of the long logs in memory (64)")
    options = parser.parse_args(argv)
    rules = load()
    search = Matcher(rules)
    size = options.mb * MB

    speeds = {name: search_speed(search, name, size) for name in FORMATS}
    wholes = {name: whole_speed(rules, name, size) for name in FORMATS}
    times = typical_ms(rules)
    middle, slowest = statistics.median(times), max(times)
    large, reason = gigabyte_seconds(rules)
    sample = typical("Hugging Face")
    loop = plain_loop_speed(rules, sample)
    ours = len(sample) / MB / statistics.median(seconds(partial(_judged, sample, rules), 9))
    imports, reading, automata = start_ms()
    figures = {
        "signatures": len(rules.signatures),
        "search_mb_s": {name: round(speed) for name, speed in speeds.items()},
        "classify_mb_s": {name: round(speed) for name, speed in wholes.items()},
        "typical_ms": {"median": round(middle, 1), "slowest": round(slowest, 1)},
        "gigabyte_s": round(large, 3),
        "re_loop_mb_s": round(loop, 3),
        "search_over_re_loop": round(statistics.median(speeds.values()) / loop),
        "typical_over_re_loop": round(ours / loop),
        "start_ms": {"imports": round(imports), "rules": round(reading), "automata": round(automata)},
    }
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"{len(rules.signatures)} signatures, {len(rules.exceptions)} rules for exceptions; one core")
        for name in FORMATS:
            print(
                f"  {name:<18} {speeds[name]:6.0f} MB/s searched, {wholes[name]:6.0f} MB/s judged ({options.mb} MB)"
            )
        print(f"  a typical log      {middle:6.1f} ms median, {slowest:.1f} ms slowest of {len(times)}")
        print(f"  a file of 1 GB     {large:6.2f} s, read at its ends ({reason})")
        print(
            f"  a plain `re` loop  {loop:6.3f} MB/s over {len(sample) // 1024} kB, so {size / MB / loop:.0f} s for "
            f"{options.mb} MB (scaled): the search is {statistics.median(speeds.values()) / loop:,.0f} times as fast, "
            f"a typical log judged whole {ours / loop:.0f} times"
        )
        print(
            f"  to start           {imports:6.0f} ms imports, {reading:.0f} ms rules, {automata:.0f} ms first search"
        )
    below = (
        *((f"{name}: {speed:.0f} MB/s < {LEAST_MB_S:.0f}", speed < LEAST_MB_S) for name, speed in speeds.items()),
        (f"1 GB: {large:.2f} s > {MOST_SECONDS:.0f}", large > MOST_SECONDS),
        (f"typical: {middle:.1f} ms > {MOST_MS:.0f}", middle > MOST_MS),
    )
    for line in (line for line, missed in below if missed):
        print(f"aim missed: {line}", file=sys.stderr)
    if not options.gate:
        return int(any(missed for _, missed in below))
    share = large / (1024 / statistics.median(speeds.values()))
    gates = (
        *(
            (f"{name}: x{speed / loop:.0f} of `re` < x{LEAST_OVER_LOOP:.0f}", speed < LEAST_OVER_LOOP * loop)
            for name, speed in speeds.items()
        ),
        (
            f"typical: x{ours / loop:.0f} of `re` < x{LEAST_TYPICAL_OVER_LOOP:.0f}",
            ours < LEAST_TYPICAL_OVER_LOOP * loop,
        ),
        (f"1 GB: {share:.0%} of a whole search > {MOST_GIGABYTE_SHARE:.0%}", share > MOST_GIGABYTE_SHARE),
    )
    for line in (line for line, missed in gates if missed):
        print(f"failed: {line}", file=sys.stderr)
    return int(any(missed for _, missed in gates))


if __name__ == "__main__":
    raise SystemExit(main())
