/**
 * The log stream of one instance on a thread of its own: the page is not woken for every line.
 *
 * Gets `{path, protocol}` once, then `"more"` whenever the page can take more; it posts `{link}` and, once
 * for each `"more"`, `{lines}`. What nobody takes is bounded, and what had to go is told.
 */

import { socketUrl } from "./api.js";
import { KEPT } from "./logbuffer.js";
import { Socket } from "./socket.js";

const FIRST_LINES = 2000;

let pending = [];
let missed = 0;
let wanted = false;
let lastSeq = null;

onmessage = ({ data }) => {
  if (data === "more") {
    wanted = true;
    give();
  } else follow(data);
};

function follow({ path, protocol }) {
  const address = () => socketUrl(`${path}?` + (lastSeq === null ? `tail=${FIRST_LINES}` : `since=${lastSeq}`));
  new Socket(address, protocol, take, (link) => postMessage({ link }));
}

function take(text) {
  const message = JSON.parse(text);
  if (message.dropped) pending.push({ notice: `${message.dropped} lines were skipped: this page fell behind` });
  else if (message.error) pending.push({ notice: message.error });
  else if (lastSeq === null || message.seq > lastSeq) {
    lastSeq = message.seq;
    pending.push(message);
  }
  if (pending.length >= 2 * KEPT) {
    pending.splice(0, KEPT);
    missed += KEPT;
  }
  give();
}

function give() {
  if (!wanted || pending.length === 0) return;
  if (missed) pending.unshift({ notice: `${missed} lines came too fast to be shown` });
  postMessage({ lines: pending });
  pending = [];
  missed = 0;
  wanted = false;
}
