/** A WebSocket to the agent that comes back by itself. */

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;
const DELETED = 1000; // the close code that says: there will be no more

/**
 * Calls `onText(text)` for each message and `onLink("connecting" | "live" | "waiting" | "ended")`.
 *
 * `address()` is asked anew for each connection, so a stream can go on where it was.
 */
export class Socket {
  #address;
  #protocol;
  #onText;
  #onLink;
  #socket = null;
  #timer = 0;
  #pauseMs = FIRST_PAUSE_MS;
  #closed = false;

  constructor(address, protocol, onText, onLink = () => {}) {
    this.#address = address;
    this.#protocol = protocol;
    this.#onText = onText;
    this.#onLink = onLink;
    this.#connect();
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#socket?.close();
  }

  #connect() {
    this.#onLink("connecting");
    const socket = new WebSocket(this.#address(), [this.#protocol]);
    this.#socket = socket;
    socket.onopen = () => {
      if (this.#closed) return socket.close();
      this.#pauseMs = FIRST_PAUSE_MS;
      this.#onLink("live");
    };
    socket.onmessage = (event) => {
      if (!this.#closed) this.#onText(event.data);
    };
    socket.onclose = (event) => this.#lost(event.code);
  }

  #lost(code) {
    if (this.#closed) return;
    if (code === DELETED) {
      this.#closed = true;
      this.#onLink("ended");
      return;
    }
    this.#onLink("waiting");
    this.#timer = setTimeout(() => this.#connect(), this.#pauseMs);
    this.#pauseMs = Math.min(this.#pauseMs * 2, LONGEST_PAUSE_MS);
  }
}
