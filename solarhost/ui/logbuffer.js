/** The newest lines of one log: `{seq, timestamp, line}` or `{notice}`, oldest first. */

export const KEPT = 5000;

export class LogBuffer {
  lines = [];

  add(lines) {
    this.lines.push(...lines);
    if (this.lines.length > KEPT) this.lines.splice(0, this.lines.length - KEPT);
  }
}
