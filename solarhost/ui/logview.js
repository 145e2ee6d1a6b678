/** Lines on the screen: the newest ones, each a text node, with what was searched for marked. */

import { make } from "./dom.js";
import { clock } from "./format.js";

const SHOWN = 2000;
const AT_END_PX = 40;

export class LogView {
  #box;
  #query = "";

  constructor(box) {
    this.#box = box;
  }

  get atEnd() {
    return this.#box.scrollHeight - this.#box.scrollTop - this.#box.clientHeight < AT_END_PX;
  }

  toEnd() {
    this.#box.scrollTop = this.#box.scrollHeight;
  }

  /** Show these instead of all that is shown; returns how many match. */
  replace(lines, query) {
    this.#query = query.toLowerCase();
    const matching = lines.filter((line) => this.#matches(line));
    this.#box.replaceChildren(this.#render(matching.slice(-SHOWN)));
    return matching.length;
  }

  /** Add lines at the end, dropping the oldest; returns how many match. */
  append(lines) {
    const matching = lines.filter((line) => this.#matches(line));
    const added = matching.slice(-SHOWN);
    const excess = this.#box.childElementCount + added.length - SHOWN;
    if (excess >= this.#box.childElementCount) this.#box.replaceChildren();
    else for (let number = 0; number < excess; number++) this.#box.firstChild.remove();
    this.#box.append(this.#render(added));
    return matching.length;
  }

  #matches(line) {
    return this.#query === "" || (line.line ?? line.notice).toLowerCase().includes(this.#query);
  }

  #render(lines) {
    const fragment = document.createDocumentFragment();
    for (const line of lines) fragment.append(this.#row(line));
    return fragment;
  }

  #row(line) {
    if (line.notice) return make("div", { className: "line notice-line" }, line.notice);
    const row = make("div", { className: "line" }, make("time", { dateTime: line.timestamp }, clock(line.timestamp)));
    const text = document.createElement("span");
    this.#mark(text, line.line);
    row.append(text);
    return row;
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
