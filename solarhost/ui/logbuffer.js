/** The newest lines of one log, as they came. */

export const KEPT = 5000;

export class LogBuffer {
  #incoming = []; // texts of messages that nobody has looked at
  #missed = 0; // of those, dropped since more came between two looks than are kept
  lines = []; // {seq, timestamp, line} or {notice}, oldest first
  lastSeq = null;

  /** Called for each message, thousands of times a second: it only keeps it. */
  push(text) {
    this.#incoming.push(text);
    if (this.#incoming.length >= 2 * KEPT) {
      this.#incoming.splice(0, KEPT);
      this.#missed += KEPT;
    }
  }

  /** Take over what came since the last call and return it. */
  take() {
    const fresh = this.#incoming.flatMap((text) => this.#read(text));
    this.#incoming = [];
    if (this.#missed) {
      fresh.unshift({ notice: `${this.#missed} lines came too fast to be shown` });
      this.#missed = 0;
    }
    this.lines.push(...fresh);
    if (this.lines.length > KEPT) this.lines.splice(0, this.lines.length - KEPT);
    return fresh;
  }

  #read(text) {
    const message = JSON.parse(text);
    if (message.dropped) return [{ notice: `${message.dropped} lines were skipped: this page fell behind` }];
    if (message.error) return [{ notice: message.error }];
    if (this.lastSeq !== null && message.seq <= this.lastSeq) return []; // sent again after a reconnect
    this.lastSeq = message.seq;
    return [message];
  }
}
