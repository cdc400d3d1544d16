"""Who holds a pool: each server and each other program, by what the driver counts for its processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from llmtop.contract.snapshot import Device, DeviceProcess, Holder, Pool
from llmtop.contract.units import bytes_text

HOST_MEMORY = ("ram", "lpddr")  # of which no driver tells who holds it


@dataclass(frozen=True, slots=True)
class Owner:
    """What a process on a GPU belongs to: a server by its URL, and a container by its name or id."""

    server: str | None = None
    container: str | None = None


def with_holders(
    pool: Pool, devices: Sequence[Device], owners: Mapping[int, Owner], names: Mapping[str, str | None]
) -> Pool:
    """The pool with its holders, the largest first, and what is nobody's; `names` are those of servers by URL.

    Holders and `other_bytes` add up to `used_bytes`; where they do not, `holders_note` says why.
    """
    processes = [process for device in devices if _is_of(pool, device) for process in device.processes]
    if pool.kind in HOST_MEMORY or not (processes or pool.used_bytes):
        return pool
    told = [process for process in processes if process.memory_bytes is not None]
    held = sum(process.memory_bytes or 0 for process in told)
    used = pool.used_bytes
    return replace(
        pool,
        holders=_grouped(processes, owners, names),
        other_bytes=None if used is None else max(0, used - held),
        holders_note=_note(used, held, len(processes), len(processes) - len(told)),
    )


def used_by(url: str, devices: Iterable[Device], owners: Mapping[int, Owner]) -> list[Device]:
    """The devices on which processes of a server are."""
    mine = {pid for pid, owner in owners.items() if owner.server == url}
    return [device for device in devices if any(process.pid in mine for process in device.processes)]


def _is_of(pool: Pool, device: Device) -> bool:
    """Whether the processes of a device hold this pool."""
    if pool.kind == "unified":
        return device.unified or device.uuid == pool.device
    return device.uuid is not None and device.uuid == pool.device


def _grouped(
    processes: Sequence[DeviceProcess], owners: Mapping[int, Owner], names: Mapping[str, str | None]
) -> tuple[Holder, ...]:
    rows: dict[str | int, Holder] = {}
    for process in processes:
        owner = owners.get(process.pid, Owner())
        key = owner.server or process.pid
        name = names.get(owner.server or "") or process.name
        row = rows.get(key) or Holder(name, owner.server, owner.container)
        size = process.memory_bytes if row.bytes is None else row.bytes + (process.memory_bytes or 0)
        rows[key] = replace(row, pids=(*row.pids, process.pid), bytes=size)
    return tuple(sorted(rows.values(), key=lambda row: (-(row.bytes or 0), row.pids)))


def _note(used: int | None, held: int, processes: int, untold: int) -> str | None:
    if used is None:
        return "how much is used is not known"
    if held > used:
        counted = f"the driver counts {bytes_text(held)} for its processes, more than the {bytes_text(used)} in use"
        return f"{counted}: what they share counts once for each"
    if not processes:
        return "the driver lists no process here: none runs, or a container hides them"
    return f"the driver does not say what {untold} of {processes} processes hold: it is in other" if untold else None
