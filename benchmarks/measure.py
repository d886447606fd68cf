"""What the benchmarks share: CPU time and memory of a server's processes, and tables with ratios."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


def machine() -> str:
    """One line that says what the figures were taken on, the present load included."""
    load = os.getloadavg()[0]
    memory = psutil.virtual_memory().total / 2**30
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    python = platform.python_version()
    return f"{name}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {python}, load {load:.1f}"


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """CPU time of the process and its descendants, ended ones included.

    Where the kernel counts a thread's time in nanoseconds that is used for what lives; psutil counts ticks
    of 10 ms, and threads that have ended too: it never goes back.
    """
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += max(_nanoseconds(process.pid) or 0.0, times.user + times.system)
            total += times.children_user + times.children_system
    return total


def _nanoseconds(pid: int) -> float | None:
    """Seconds that the living threads of a process have run, from the scheduler's own count."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except (OSError, IndexError, ValueError):
        return None


@dataclass(frozen=True)
class Memory:
    """Of a server's processes together, in MB. `unique`: what ending it would give back; `resident`
    counts shared pages once per process.
    """

    processes: int
    resident: float
    unique: float


def memory(pid: int) -> Memory:
    processes = tree(pid)
    infos = [process.memory_full_info() for process in processes]
    return Memory(len(infos), sum(i.rss for i in infos) / 1e6, sum(i.uss for i in infos) / 1e6)


def peak_resident(pid: int) -> float:
    """The most that any one of a server's processes has held so far, in MB."""
    peaks = []
    for process in tree(pid):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peaks.append(
                int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6
            )
    return max(peaks)


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A markdown table, so that it can be pasted into a document as it is."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    print(f"\n{title}\n")
    for number, row in enumerate(cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def ratio(peer: float, ours: float) -> str:
    """How many times the peer's figure is ours."""
    return f"{peer / ours:.1f}x" if ours else "-"
