"""`make chaos`: CHAOS_MINUTES (15) of work and faults from CHAOS_SEED (a new one)."""

import faulthandler
import os
import secrets
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from random import Random
from threading import BoundedSemaphore

from contrib.chaos.ending import Ending
from contrib.chaos.faults import ENDING_THE_AGENT, Faults
from contrib.chaos.findings import Findings, say
from contrib.chaos.instances import SLOTS, InstanceWork
from contrib.chaos.lines import Watcher
from contrib.chaos.memory import Memory
from contrib.chaos.pressure import Pressure
from contrib.chaos.rest import Rest
from contrib.chaos.script import Step, script
from contrib.chaos.truth import Truth
from contrib.chaos.work import Work
from contrib.chaos.world import World, build

AT_ONCE = 16  # actions
MIB_A_MINUTE = 6.0  # what the agent's memory may grow by, while its buffers still fill


def main() -> None:
    seed = int(os.environ.get("CHAOS_SEED") or secrets.randbelow(10**9))
    minutes = float(os.environ.get("CHAOS_MINUTES") or 15)
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    repeat = f"make chaos CHAOS_SEED={seed} CHAOS_MINUTES={minutes:g}"
    say(f"chaos: {minutes:g} minutes; to repeat: {repeat}")
    with build(live_restore=Random(seed).random() < 0.5) as world:
        findings = Findings(repeat)
        say(f"chaos: everything is in {world.folder}")
        try:
            run(world, findings, seed, minutes * 60)
        finally:
            say(findings.summary())
    if findings.found:
        say(f"chaos: the agent's log, control's record and all files are kept in {world.folder}")
        raise SystemExit(1)
    shutil.rmtree(world.folder)


def run(world: World, findings: Findings, seed: int, duration_s: float) -> None:
    """Work and faults for so long, then the end."""
    memory = Memory()
    rest = Rest(world, findings)
    work = Work(world, rest, memory, findings)
    faults = Faults(world, memory, findings)
    ending = Ending(world, rest, memory, work, findings)
    ending.baseline()
    truth = Truth(world, rest, memory, findings)
    watchers = [Watcher(slot, world, memory, findings) for slot in SLOTS if slot.startswith("count")]
    judges: list[Truth | Watcher] = [truth, *watchers]
    for judge in judges:
        judge.start()
    owners = (work, InstanceWork(world, rest, memory, findings), faults, Pressure(world, memory))
    actions = {name: getattr(owner, name) for owner in owners for name in owner.DECK}
    deck = {name: count for owner in owners for name, count in owner.DECK.items()}
    perform(script(seed, deck), duration_s, actions, findings)
    for judge in judges:
        judge.stop()
    for judge in judges:
        judge.join()
    slope = truth.memory.mib_a_minute()
    if slope is not None and slope > MIB_A_MINUTE:
        findings.add("memory", f"the worker grows by less than {MIB_A_MINUTE} MiB a minute", f"{slope:.2f}")
    ending.judge()
    shown = "too short to tell" if slope is None else f"{slope:+.2f} MiB a minute"
    say(f"chaos: memory of the last worker, MiB by minute: {truth.memory.course}; its second half: {shown}")
    lines = sum(watcher.lines for watcher in watchers)
    say(f"chaos: {findings.step} steps, {truth.looks} comparisons, {lines} log lines followed")
    slowest = ", ".join(f"{kind} {took_s:.2f} s" for kind, took_s in sorted(rest.slowest.items()))
    say(f"chaos: the slowest of each call: {slowest}")


def perform(
    steps: Iterator[Step],
    duration_s: float,
    actions: Mapping[str, Callable[[Random], None]],
    findings: Findings,
) -> None:
    """Carry out the script, several actions at once; return when the last has ended.

    In the last third nothing ends the agent's own processes, so that a leak has time to show.
    """
    room = BoundedSemaphore(AT_ONCE)
    until = time.monotonic() + duration_s
    calm_from = until - duration_s / 3

    def ended(what: str, action: Future[None]) -> None:
        room.release()
        error = action.exception()
        if error is not None:
            findings.add(f"action {what}", "it can be carried out", repr(error)[:1500])
            traceback.print_exception(error)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="act") as pool:
        for step in steps:
            time.sleep(step.pause_s)
            if time.monotonic() > until:
                break
            if step.what in ENDING_THE_AGENT and time.monotonic() > calm_from:
                continue
            room.acquire()
            findings.step = step.number
            pool.submit(actions[step.what], step.chance).add_done_callback(partial(ended, step.what))


if __name__ == "__main__":
    main()
