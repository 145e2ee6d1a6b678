"""Nothing is promised twice, whatever the order of things; and in the end all is given back."""

import random
from contextlib import suppress
from datetime import timedelta
from threading import Event, Lock, Thread

from solarhost.errors import InvalidRequest, NotFound
from solarhost.resources.allocation import Need
from solarhost.resources.errors import CapacityExceeded, GpuShort
from solarhost.resources.readings import GIB
from solarhost.resources.service import Ask
from solarhost.times import now
from tests.resources_fakes import TWO_GPUS, FakeJob

pytest_plugins = ["tests.resources_fixtures"]

FREE = {0: 16 * GIB, 1: 24 * GIB}


def promised(shown):
    """Bytes promised on each GPU, by the list of promises itself."""
    total = dict.fromkeys(FREE, 0)
    for entry in [*shown["reservations"], *shown["instance_charges"]]:
        for gpu_id in entry["gpu_ids"]:
            total[gpu_id] += round(entry["vram_gb"] * GIB)
    return total


def assert_not_oversold(shown):
    for gpu_id, size in promised(shown).items():
        assert size <= FREE[gpu_id], f"GPU {gpu_id} is oversold: {shown}"
    for dimension in ("ram", "disk"):
        block = shown[dimension]
        assert block["available_gb"] + block["reserved_headroom_gb"] <= block["total_gb"]


def test_fifty_threads_can_not_oversell(two_gpus):
    """Each keeps count of what it was granted; the sum of all may never exceed what there is."""
    lock = Lock()
    granted = dict.fromkeys(FREE, 0)
    most = dict.fromkeys(FREE, 0)
    refused = []
    failures = []

    def churn(seed):
        chance = random.Random(seed)
        held = []
        try:
            for _ in range(20):
                if held and chance.random() < 0.4:
                    give_back(*held.pop())
                else:
                    held += grant(chance.randint(1, 48) * GIB // 4, chance.choice([None, None, [0], [1]]))
                assert_not_oversold(two_gpus.snapshot())
            while held:
                give_back(*held.pop())
        except Exception as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    def grant(size, gpu_ids):
        need = Need(vram=size, ram=1024, disk=1024, gpu_ids=gpu_ids)
        try:
            made = two_gpus.reserve(Ask(job_id="job", need=need))
        except CapacityExceeded as error:
            refused.append(error)
            return []
        (device,) = made["gpu_ids"]
        with lock:
            granted[device] += size
            most[device] = max(most[device], granted[device])
        return [(made["id"], device, size)]

    def give_back(reservation_id, device, size):
        with lock:  # before the release, so that the count is never above what is really promised
            granted[device] -= size
        two_gpus.release(reservation_id)

    threads = [Thread(target=churn, args=(seed,)) for seed in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert all(not thread.is_alive() for thread in threads)
    assert {error.dimension for error in refused} == {"vram"}
    for device, size in most.items():
        assert FREE[device] // 2 < size <= FREE[device]
    assert two_gpus.snapshot()["vram"]["reserved_headroom_gb"] == 0
    assert two_gpus.snapshot()["reservations"] == []


class Story:
    """A random sequence of what can happen to jobs and instances on one host."""

    def __init__(self, seed, make_resources, jobs, resources):
        self._chance = random.Random(seed)
        self._make = make_resources
        self._jobs = jobs
        self._jobs.clear()
        self.resources = resources
        self._alive = {}  # instance id -> (pid, devices, GiB) of those whose processes live
        self._promised = []
        self._number = 0

    def run(self, length):
        moves = [
            self.reserve,
            self.reserve,
            self.begin_job,
            self.end_job,
            self.release,
            self.start,
            self.start,
            self.fail_to_start,
            self.stop,
        ]
        for _ in range(length):
            self._chance.choice(moves)()
            assert_not_oversold(self.resources.snapshot())
        if self._chance.random() < 0.05:
            self.restart_the_agent()
        self.finish()

    def reserve(self):
        self._number += 1
        job_id = f"job-{self._number}"
        need = Need(
            vram=self._size(),
            ram=self._chance.choice([0, GIB // 64]),
            gpu_count=self._chance.choice([1, 1, 2]),
        )
        expires = now() + timedelta(microseconds=self._chance.choice([500, 3_600_000_000]))
        with suppress(CapacityExceeded, InvalidRequest):  # too much, or late already
            made = self.resources.reserve(Ask(job_id=job_id, need=need, expires_at=expires))
            self._promised.append((made["id"], job_id))

    def begin_job(self):
        if self._promised:
            self._jobs[self._chance.choice(self._promised)[1]] = FakeJob()

    def end_job(self):
        if self._jobs:
            job_id = self._chance.choice(list(self._jobs))
            if self._chance.random() < 0.5:
                self._jobs[job_id] = FakeJob(running=False)
            else:
                del self._jobs[job_id]

    def release(self):
        if self._promised:
            reservation_id, job_id = self._chance.choice(self._promised)
            if job_id not in self._jobs:
                with suppress(NotFound):
                    self.resources.release(reservation_id)

    def start(self):
        """Also starts one that runs already: the charge is replaced, never added."""
        instance_id = f"instance-{self._chance.randint(1, 4)}"
        size = self._size() / GIB
        try:
            devices = self.resources.charges.admit(instance_id, None, size, Event())
        except GpuShort:
            return
        self.resources.charges.spawned(instance_id, 2**22 + len(self._alive))  # no process has such a pid
        self._alive[instance_id] = (2**22 + len(self._alive), devices, size)

    def fail_to_start(self):
        with suppress(GpuShort):
            self.resources.charges.admit("instance-9", None, self._size() / GIB, Event())
        self.resources.charges.release("instance-9")

    def stop(self):
        """A stop, a crash or a delete: the same to the ledger, and any of them may tell of it again."""
        if self._alive:
            instance_id = self._chance.choice(list(self._alive))
            del self._alive[instance_id]
            for _ in range(self._chance.choice([1, 2])):
                self.resources.charges.release(instance_id)

    def restart_the_agent(self):
        """Reservations are forgotten; instances that live on are adopted."""
        self.resources = self._make(TWO_GPUS)
        self._promised = []
        for instance_id, (pid, devices, size) in self._alive.items():
            self.resources.charges.adopt(instance_id, pid, devices, size)
        assert_not_oversold(self.resources.snapshot())

    def finish(self):
        """Everything ends; now whatever is left can be deleted, and nothing stays promised."""
        self._jobs.clear()
        for instance_id in self._alive:
            self.resources.charges.release(instance_id)
        for entry in self.resources.snapshot()["reservations"]:
            with suppress(NotFound):  # it expired
                self.resources.release(entry["id"])
        self.resources.charges.release("nobody")
        shown = self.resources.snapshot()
        assert shown["reservations"] == []
        assert shown["instance_charges"] == []
        for dimension in ("vram", "ram", "disk"):
            assert shown[dimension]["reserved_headroom_gb"] == 0

    def _size(self):
        return self._chance.randint(0, 14) * GIB


def test_two_thousand_random_stories_end_with_nothing_promised(make_resources, jobs):
    resources = make_resources(TWO_GPUS)
    for seed in range(2000):
        story = Story(seed, make_resources, jobs, resources)
        story.run(length=seed % 8 + 2)
        resources = story.resources
