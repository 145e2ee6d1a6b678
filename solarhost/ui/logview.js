/** Lines on the screen, each a text node, with what was searched for marked. */

import { make } from "./dom.js";
import { clock } from "./format.js";

const FOLLOWED = 300; // a screen or two: what rushes by need not be laid out
const PAUSED = 1000;

export class LogView {
  #box;
  #query = "";

  constructor(box) {
    this.#box = box;
  }

  /** Show the newest of these instead of all that is shown, and stay as far from the end as before. */
  replace(lines, query, paused) {
    this.#query = query.toLowerCase();
    const matching = this.find(lines).slice(-(paused ? PAUSED : FOLLOWED));
    const fromEnd = this.#box.scrollHeight - this.#box.scrollTop;
    this.#box.replaceChildren(this.#render(matching));
    this.#box.scrollTop = paused ? this.#box.scrollHeight - fromEnd : this.#box.scrollHeight;
  }

  /** Add lines at the end, dropping the oldest, and go there. */
  append(lines) {
    const added = this.find(lines).slice(-FOLLOWED);
    const excess = this.#box.childElementCount + added.length - FOLLOWED;
    if (excess >= this.#box.childElementCount) this.#box.replaceChildren();
    else for (let number = 0; number < excess; number++) this.#box.firstChild.remove();
    this.#box.append(this.#render(added));
    this.#box.scrollTop = this.#box.scrollHeight;
  }

  /** Those of the lines that match. */
  find(lines) {
    if (this.#query === "") return lines;
    return lines.filter((line) => (line.line ?? line.notice).toLowerCase().includes(this.#query));
  }

  #render(lines) {
    const fragment = document.createDocumentFragment();
    for (const line of lines) fragment.append(this.#row(line));
    return fragment;
  }

  #row(line) {
    if (line.notice) return make("div", { className: "line notice-line" }, line.notice);
    const text = document.createElement("span");
    this.#mark(text, line.line);
    const at = make("time", { dateTime: line.timestamp }, clock(line.timestamp));
    return make("div", { className: "line" }, at, text);
  }

  #mark(node, text) {
    if (this.#query === "") {
      node.textContent = text;
      return;
    }
    const lower = text.toLowerCase();
    let from = 0;
    for (let at = lower.indexOf(this.#query); at >= 0; at = lower.indexOf(this.#query, from)) {
      const end = at + this.#query.length;
      node.append(text.slice(from, at), make("mark", {}, text.slice(at, end)));
      from = end;
    }
    node.append(text.slice(from));
  }
}
