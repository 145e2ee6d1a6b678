"""The texts of one request and their vectors, between the request thread and the batcher."""

from collections.abc import Callable, Sequence
from threading import Event, Lock

import numpy as np
from numpy.typing import NDArray

from hf_server.errors import ApiError

Vectors = NDArray[np.float32]  # [texts, width]


class TextJob:
    """`wait` is for the request's thread, the rest for the batcher's lanes, several at once."""

    def __init__(self, texts: Sequence[list[int]], is_abandoned: Callable[[], bool]):
        self.texts = texts
        self.is_abandoned = is_abandoned
        self.begun = 0  # texts that were given to the model
        self._lock = Lock()  # guards the two below
        self._vectors: Vectors = np.empty((0, 0), dtype=np.float32)
        self._left = len(texts)
        self._error: ApiError | None = None
        self._done = Event()

    def wait(self) -> Vectors:
        """The vectors in the order of the texts. Raises ApiError."""
        self._done.wait()
        if self._error:
            raise self._error
        return self._vectors

    def put(self, place: int, vector: Vectors) -> None:
        """The vector of the text at `place`, float [width]."""
        with self._lock:
            if not len(self._vectors):
                self._vectors = np.empty((len(self.texts), len(vector)), dtype=np.float32)
            self._vectors[place] = vector
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._done.set()

    def fail(self, error: ApiError) -> None:
        self._error = error
        self._done.set()
