"""KV cache blocks with a prefix cache, as vLLM's block pool: reference counts, and free blocks in LRU
order.

A block that no request holds is free, but keeps its content until it is taken again: so a warm prefix cache
does not raise the usage. Block 0 is the null block and is never given out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

NULL_BLOCKS = 1


class BlockPool:
    """`total` blocks of `block_size` tokens, the null block included."""

    __slots__ = ("_content", "_free", "_holders", "_where", "block_size", "total")

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(NULL_BLOCKS, total))
        self._holders = [0] * total
        self._content: dict[int, int] = {}  # block -> hash of what it holds
        self._where: dict[int, int] = {}  # hash -> block

    @property
    def free(self) -> int:
        """Blocks that no request holds."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return self.total - NULL_BLOCKS - len(self._free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0..1 (vLLM: 1 - free / (blocks - 1))."""
        return self.used / (self.total - NULL_BLOCKS)

    def needed(self, tokens: int) -> int:
        """Blocks that `tokens` tokens take."""
        return -(-tokens // self.block_size)

    def take(self, count: int) -> list[int]:
        """`count` blocks for one holder, least recently used first; raises IndexError when fewer are free."""
        if count > len(self._free):
            raise IndexError(f"{count} KV blocks asked for, {len(self._free)} free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
            content = self._content.pop(block, None)
            if content is not None:
                del self._where[content]
        return blocks

    def cached(self, hashes: Iterable[int]) -> list[int]:
        """The blocks that hold the longest known prefix of `hashes`."""
        found = []
        for content in hashes:
            block = self._where.get(content)
            if block is None:
                break
            found.append(block)
        return found

    def reclaim(self, blocks: Sequence[int]) -> int:
        """How many of these cached blocks are free, that is, would leave the free list when held."""
        return sum(1 for block in blocks if self._holders[block] == 0)

    def hold(self, blocks: Sequence[int]) -> None:
        """Adds a holder to cached blocks."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._free[block]
            self._holders[block] += 1

    def remember(self, block: int, content: int) -> None:
        """Makes a full block findable by the hash of its content; the first block with a content stays the
        one.
        """
        if content not in self._where and block not in self._content:
            self._where[content] = block
            self._content[block] = content

    def release(self, blocks: Sequence[int]) -> None:
        """Takes a holder away; the tail of a request is reused before its head."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free[block] = None

    def forget(self) -> None:
        """Empties the prefix cache."""
        self._content.clear()
        self._where.clear()


def block_hashes(prompt: Sequence[int], block_size: int, salt: Hashable = None) -> list[int]:
    """One chained hash for every full block of `prompt`; `salt` keeps equal prompts of different callers
    apart.
    """
    hashes = []
    parent = hash(salt) if salt is not None else 0
    for start in range(0, len(prompt) - block_size + 1, block_size):
        parent = hash((parent, tuple(prompt[start : start + block_size])))
        hashes.append(parent)
    return hashes
