"""Block allocator: which KV blocks are free. Pure accounting; the memory itself is in ``kv_store``."""

from __future__ import annotations

from bisect import bisect_left


class BlockAllocator:
    """Hands out block numbers ``0…total-1``, lowest first and as one ascending run whenever one is free.

    Free space is a sorted list of disjoint, non-adjacent runs ``[start, end)``.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"an engine needs at least one KV block, got {total}")
        self.total = total
        self._runs: list[list[int]] = [[0, total]]
        self.free = total

    @property
    def used(self) -> int:
        return self.total - self.free

    def __repr__(self) -> str:
        return f"<BlockAllocator {self.used}/{self.total} used>"

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """``count`` block numbers in ascending order, or None if fewer are free."""
        if count > self.free:
            return None
        whole = next((run for run in self._runs if run[1] - run[0] >= count), None)
        taken: list[int] = []
        for run in [whole] if whole is not None else list(self._runs):
            size = min(count - len(taken), run[1] - run[0])
            taken.extend(range(run[0], run[0] + size))
            run[0] += size
            if len(taken) == count:
                break
        self._runs = [run for run in self._runs if run[0] < run[1]]
        self.free -= count
        return tuple(taken)

    def release(self, blocks: tuple[int, ...]) -> None:
        """Give blocks back. Releasing a block that is free already is a bug and raises ValueError."""
        for block in blocks:
            if not 0 <= block < self.total:
                raise ValueError(f"block {block} does not exist")
            at = bisect_left(self._runs, [block + 1])
            before = self._runs[at - 1] if at else None
            after = self._runs[at] if at < len(self._runs) else None
            if before is not None and before[1] > block:
                raise ValueError(f"block {block} is released twice")
            joins_before = before is not None and before[1] == block
            joins_after = after is not None and after[0] == block + 1
            if before is not None and after is not None and joins_before and joins_after:
                before[1] = after[1]
                del self._runs[at]
            elif before is not None and joins_before:
                before[1] = block + 1
            elif after is not None and joins_after:
                after[0] = block
            else:
                self._runs.insert(at, [block, block + 1])
            self.free += 1
