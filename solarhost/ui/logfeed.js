/** The page's end of a log stream, whose other end is `logworker.js`. */

import { keyProtocol } from "./session.js";

// The only script that is named by a string; the policy admits no other.
const address = new URL("logworker.js", import.meta.url).href;
const policy = globalThis.trustedTypes?.createPolicy("worker", { createScriptURL: () => address });

export class LogFeed {
  #worker = new Worker(policy?.createScriptURL("") ?? address, { type: "module" });

  /** Calls `onLines(lines)` once after each `more()`, and `onLink(link)` as `Socket` does. */
  constructor(instanceId, onLines, onLink) {
    this.#worker.onmessage = ({ data }) => (data.lines ? onLines(data.lines) : onLink(data.link));
    this.#worker.postMessage({ path: `instances/${instanceId}/logs`, protocol: keyProtocol() });
    this.more();
  }

  more() {
    this.#worker.postMessage("more");
  }

  close() {
    this.#worker.terminate();
  }
}
