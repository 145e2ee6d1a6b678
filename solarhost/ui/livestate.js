/** What running instances are doing: over WebSockets while there are few, asked for in turn beyond that. */

import { get, socketUrl } from "./api.js";
import { poll } from "./poll.js";
import { keyProtocol } from "./session.js";
import { Socket } from "./socket.js";

const MOST_SOCKETS = 12; // the agent has a limit for all its clients together (MAX_STREAMS)
const ASK_EVERY_MS = 2000;

export class LiveStates {
  #sockets = new Map(); // id -> Socket
  #asked = new Map(); // id -> onState

  constructor() {
    poll(ASK_EVERY_MS, () => this.#ask());
  }

  /** Calls `onState(state)` now and with each change until `stop(id)`. */
  start(id, onState) {
    if (this.#sockets.has(id) || this.#asked.has(id)) return;
    if (this.#sockets.size >= MOST_SOCKETS) {
      this.#asked.set(id, onState);
      return;
    }
    const onText = (text) => {
      const message = JSON.parse(text);
      if (message.data) onState(message.data);
    };
    this.#sockets.set(id, new Socket(() => socketUrl(`instances/${id}/state`), keyProtocol(), onText));
  }

  stop(id) {
    this.#sockets.get(id)?.close();
    this.#sockets.delete(id);
    this.#asked.delete(id);
  }

  async #ask() {
    for (const [id, onState] of [...this.#asked]) {
      try {
        const state = await get(`instances/${id}/state`);
        if (this.#asked.has(id)) onState(state);
      } catch {
        return; // the list of instances tells what is wrong
      }
    }
  }
}
