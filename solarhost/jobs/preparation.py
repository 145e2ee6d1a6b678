"""From a step's definition to its container: room, image, GPUs, environment, mounts."""

from dataclasses import replace
from urllib.parse import urlsplit

from solarhost.containers.engine import ContainerSpec, Engine
from solarhost.containers.errors import CallCut, EngineRefused, NameTaken
from solarhost.containers.images import Credentials, pull_progress
from solarhost.errors import StoreError
from solarhost.jobs.interrupts import Interrupts
from solarhost.jobs.records import Job
from solarhost.jobs.steplog import StepLog
from solarhost.jobs.workspace import Workspaces
from solarhost.settings import Settings

LABEL_HOST = "solarhost.jobs-dir"  # whose container it is: two agents may share one engine
LABEL_RUN = "solarhost.run"
LABEL_JOB = "solarhost.job"
LABEL_STEP = "solarhost.step"


class StepFailed(Exception):
    """The step can't end well; the text says why."""


class Preparation:
    """Makes the containers of one host's jobs; keeps nothing."""

    def __init__(self, settings: Settings, engine: Engine, workspaces: Workspaces):
        self._settings = settings
        self._engine = engine
        self._workspaces = workspaces

    def host_labels(self) -> dict[str, str]:
        """On every container of this host."""
        return {LABEL_HOST: str(self._workspaces.folder)}

    def step_labels(self, job: Job, index: int) -> dict[str, str]:
        """By which the container of a step is found again."""
        return {**self.host_labels(), LABEL_RUN: job.uid, LABEL_JOB: job.id, LABEL_STEP: str(index)}

    def create(self, job: Job, index: int, log: StepLog, interrupts: Interrupts) -> str:
        """The id of a new container for the step, ready to start.

        Raises:
            StepFailed: no room, no image, no GPU runtime, or Docker refuses the definition.
            EngineAway, Cancelled, Detached.
        """
        step = job.definition.steps[index]
        try:
            self._workspaces.check_disk(job.definition.min_free_disk_gb)
            binds = self._workspaces.binds(job.id, step)
            if step.gpu is not None:
                self._check_gpu_runtime()
            self._provide_image(step.image, log, interrupts)
            interrupts.check()
            spec = ContainerSpec(
                name=f"solar-job-{job.id}-{step.name}",
                image=step.image,
                command=step.command,
                environment=self._environment(job, index),
                binds=binds,
                user=f"{self._settings.container_uid}:{self._settings.container_gid}",
                labels=self.step_labels(job, index),
                gpus=step.gpu,
            )
            try:
                return self._engine.create(spec)
            except NameTaken:  # job a-b's step c and job a's step b-c, or a container that is not ours
                return self._engine.create(replace(spec, name=f"{spec.name}-{job.uid[:8]}"))
        except EngineRefused as refusal:
            self._engine.ping()  # one that is about to go refuses too, and then this raises EngineAway
            raise StepFailed(str(refusal)) from refusal
        except StoreError as error:
            raise StepFailed(str(error)) from error

    def _check_gpu_runtime(self) -> None:
        if "nvidia" not in self._engine.runtimes():
            raise StepFailed(
                "it wants GPUs, and the Docker engine has no nvidia runtime: install the NVIDIA Container "
                "Toolkit, run `nvidia-ctk runtime configure` and restart Docker"
            )

    def _provide_image(self, image: str, log: StepLog, interrupts: Interrupts) -> None:
        if self._engine.has_image(image):
            return
        log.note(f"pulling image {image}")
        call = self._engine.pull(image, self._credentials())
        with interrupts.cutting(call):
            try:
                for progress in pull_progress(call, f"pull image {image}"):
                    log.note(progress)
            except CallCut:
                interrupts.check()
                raise
        if not self._engine.has_image(image):
            raise EngineRefused(f"pull image {image}", "the download ended early")

    def _credentials(self) -> Credentials | None:
        """For images that live in the registry of the models."""
        settings = self._settings
        if not (settings.harbor_url and settings.harbor_username):
            return None
        registry = urlsplit(settings.harbor_url).netloc or settings.harbor_url
        return Credentials(registry, settings.harbor_username, settings.harbor_password)

    def _environment(self, job: Job, index: int) -> dict[str, str]:
        """What a container is told; the step's own variables win. The agent's keys are not among it."""
        settings, step = self._settings, job.definition.steps[index]
        environment = {
            "JOB_ID": job.id,
            "STEP_NAME": step.name,
            "STEP_INDEX": str(index),
            "WORKSPACE_MODELS": "/workspace/models",
            "WORKSPACE_DATA": "/workspace/data",
            "WORKSPACE_OUTPUT": "/workspace/output",
            "WORKSPACE_CONFIG": "/workspace/config",
            "JOB_CONFIG": "/workspace/config/job.json",
            "HARBOR_URL": settings.harbor_url,
            "HARBOR_USERNAME": settings.harbor_username,
            "HARBOR_PASSWORD": settings.harbor_password,
            "HF_TOKEN": settings.hf_token,
            "HF_HOME": "/workspace/.cache/huggingface",
        }
        if step.gpu is not None:
            environment |= {
                "NVIDIA_VISIBLE_DEVICES": "all",
                "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            }
        return environment | dict(step.environment)
