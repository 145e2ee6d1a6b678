"""The server's state: how far the model is, and the engine once it runs."""

import importlib
import logging
import os
import time
from threading import Thread

from hf_server import log
from hf_server.engines import Engine, GeneratingEngine, VectorEngine
from hf_server.errors import ModelLoading, StartFailed, Stopping
from hf_server.metrics import Metrics
from hf_server.options import Options

# gunicorn's code for a worker that can't boot: the master then ends, instead of starting another.
BOOT_FAILED = 3
_INSTALL = "pip install 'solar-host[huggingface]'"

logger = logging.getLogger("hf_server")


class Service:
    """One model from loading to the end. Safe from any thread."""

    def __init__(self, options: Options):
        self.options = options
        self.metrics = Metrics()
        self.created = int(time.time())
        self.stage = "importing"
        self._engine: Engine | None = None
        self._closing = False

    def start(self) -> None:
        """Load the model in a thread of its own, so that the port answers meanwhile."""
        Thread(target=self._load, name="loader", daemon=True).start()

    def use(self, engine: Engine) -> None:
        """The model is ready."""
        self._engine = engine
        self.stage = "ready"

    def close(self) -> None:
        """Fail what waits and runs. Safe in a signal handler."""
        self._closing = True
        if self._engine is not None:
            self._engine.close()

    @property
    def generating_engine(self) -> GeneratingEngine:
        """Raises ModelLoading, Stopping."""
        engine = self._running()
        assert isinstance(engine, GeneratingEngine)  # other model types have no such endpoint
        return engine

    @property
    def vector_engine(self) -> VectorEngine:
        """Raises ModelLoading, Stopping."""
        engine = self._running()
        assert isinstance(engine, VectorEngine)
        return engine

    @property
    def context_size(self) -> int:
        """Most tokens of a prompt and its answer: the configured ones until the model is known."""
        if isinstance(self._engine, GeneratingEngine):
            return self._engine.context
        return self.options.max_length if self._engine is None else self._engine.max_tokens

    @property
    def device(self) -> str | None:
        """Where the model runs; None until it does."""
        return None if self._engine is None or self._closing else self._engine.device

    def _load(self) -> None:
        begun = time.monotonic()
        log.event("start", model=self.options.model_id, type=self.options.model_type, stage=self.stage)
        try:
            # Here and not at the top: importing torch takes seconds, and the port is to answer meanwhile.
            starter = importlib.import_module("hf_server.engine.start")
            engine: Engine = starter.start(self.options, self.metrics, self._on_stage)
        except StartFailed as error:
            self._give_up(str(error))
        except ModuleNotFoundError as error:
            self._give_up(f"the package '{error.name}' is not installed; install with: {_INSTALL}")
        except Exception as error:
            logger.exception("event=start_traceback")
            self._give_up(f"unexpected {type(error).__name__}: {error}")
        else:
            self.use(engine)
            took_s = time.monotonic() - begun
            log.event("ready", model=self.options.alias, device=engine.device, duration_s=took_s)

    def _running(self) -> Engine:
        if self._closing:
            raise Stopping("the server is stopping")
        if self._engine is None:
            raise ModelLoading(f"the model is not ready yet: {self.stage}")
        return self._engine

    def _on_stage(self, stage: str) -> None:
        self.stage = stage
        log.event("stage", stage=stage)

    def _give_up(self, reason: str) -> None:
        log.failure("start_failed", message=reason)
        logging.shutdown()
        os._exit(BOOT_FAILED)
