/** Calls to the agent. The page may be served below a prefix, so addresses are relative to this file. */

import { storedKey } from "./session.js";

const ROOT = new URL("../", import.meta.url);
const READ_WITHIN_MS = 10_000;

/** An answer that is not a success; `status` 0 means that there was none. */
export class Failed extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const get = (path) => call("GET", path, AbortSignal.timeout(READ_WITHIN_MS));

/** Waits as long as it takes: a start answers when the model is loaded. */
export const act = (method, path) => call(method, path);

export function socketUrl(path) {
  const url = new URL(path, ROOT);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url;
}

async function call(method, path, signal) {
  let answer;
  let body;
  try {
    answer = await fetch(new URL(path, ROOT), { method, signal, cache: "no-store", headers: { "X-API-Key": storedKey() } });
    body = await answer.json();
  } catch (error) {
    if (answer === undefined) throw new Failed(0, "The agent does not answer.");
    throw new Failed(answer.status, `The agent’s answer can’t be read: ${error.message}`);
  }
  if (!answer.ok) throw new Failed(answer.status, sentence(body.detail));
  return body;
}

function sentence(detail) {
  return typeof detail === "string" ? detail : JSON.stringify(detail);
}
