/** The log panel of one instance: follows, pauses, searches, and goes on after a reconnect. */

import { get } from "./api.js";
import { byId, setText, show } from "./dom.js";
import { count } from "./format.js";
import { LogBuffer } from "./logbuffer.js";
import { LogFeed } from "./logfeed.js";
import { LogView } from "./logview.js";

const FROM_FILE = 2000;
const REST_MS = 40; // between two draws
const FLOOD = 200; // lines in one draw
const FLOOD_REST_MS = 150; // the operator's input, the layout and the rest of the page need their turn
const SEARCH_AFTER_MS = 120;
const SILENCE_MS = 700; // nothing in memory by then: the file may have lines
const LINKS = {
  connecting: "connecting…",
  live: "live",
  waiting: "connection lost, trying again…",
  ended: "ended: the instance was deleted",
};
const narrow = matchMedia("(max-width: 1099px)");

export class Log {
  #view = new LogView(byId("log-lines"));
  #buffer = null; // of the open log
  #feed = null;
  #paused = false;
  #waiting = 0; // lines that came while paused
  #query = "";
  #opener = null; // gets the focus back

  constructor() {
    byId("log-close").onclick = () => this.close();
    byId("log-pause").onclick = () => this.#pause(!this.#paused);
    byId("log-newest").onclick = () => this.#pause(false);
    byId("log-wrap").onchange = (event) => byId("log-lines").classList.toggle("long", !event.target.checked);
    byId("log").onkeydown = (event) => {
      if (event.key === "Escape" && !(event.target.id === "log-search" && event.target.value)) this.close();
    };
    this.#pauseOnScroll(byId("log-lines"));
    let timer = 0;
    byId("log-search").oninput = (event) => {
      clearTimeout(timer);
      timer = setTimeout(() => this.#search(event.target.value), SEARCH_AFTER_MS);
    };
    narrow.onchange = () => this.#cover();
  }

  open(instance) {
    this.#feed?.close();
    this.#opener = document.activeElement;
    const buffer = new LogBuffer();
    this.#buffer = buffer;
    setText(byId("log-title"), `Log of ${instance.config.alias}`);
    show(byId("log"), true);
    document.body.classList.add("with-log");
    this.#cover();
    this.#pause(false);
    byId("log-title").focus();
    const feed = new LogFeed(
      instance.id,
      (lines) => requestAnimationFrame(() => this.#take(feed, lines)),
      (link) => {
        setText(byId("log-link"), LINKS[link]);
        byId("log-link").dataset.link = link;
      },
    );
    this.#feed = feed;
    setTimeout(() => this.#readFile(instance.id, buffer), SILENCE_MS);
  }

  close() {
    this.#feed?.close();
    this.#feed = null;
    this.#buffer = null;
    show(byId("log"), false);
    document.body.classList.remove("with-log");
    this.#cover();
    this.#opener?.focus();
  }

  /** On a narrow screen the panel covers the rest, which then must not get the focus. */
  #cover() {
    byId("content").inert = narrow.matches && this.#buffer !== null;
  }

  /** Whoever scrolls up wants to read. */
  #pauseOnScroll(box) {
    box.onwheel = (event) => event.deltaY < 0 && this.#pause(true);
    box.ontouchmove = () => this.#pause(true);
    box.onpointerdown = (event) => event.offsetX >= box.clientWidth && this.#pause(true); // the scroll bar
    box.onkeydown = (event) => {
      if (["ArrowUp", "PageUp", "Home"].includes(event.key)) this.#pause(true);
      if (event.key === "End") this.#pause(false);
    };
  }

  /** The agent keeps the lines of an instance that ended before its own start on disk only. */
  async #readFile(id, buffer) {
    if (buffer !== this.#buffer || buffer.lines.length) return;
    try {
      const lines = await get(`instances/${id}/logs?tail=${FROM_FILE}`);
      if (buffer !== this.#buffer || buffer.lines.length) return;
      buffer.add(lines);
      this.#redraw();
    } catch {
      if (buffer === this.#buffer) setText(byId("log-count"), "no lines yet");
    }
  }

  #pause(paused) {
    if (paused && this.#paused) return;
    this.#paused = paused;
    this.#waiting = 0;
    byId("log-pause").setAttribute("aria-pressed", String(paused));
    setText(byId("log-pause"), paused ? "Resume" : "Pause");
    show(byId("log-newest"), paused);
    this.#redraw();
  }

  #search(query) {
    this.#query = query;
    this.#redraw();
  }

  #redraw() {
    if (this.#buffer === null) return;
    this.#view.replace(this.#buffer.lines, this.#query, this.#paused);
    this.#tally();
  }

  #take(feed, lines) {
    if (feed !== this.#feed) return;
    this.#buffer.add(lines);
    if (this.#paused) this.#waiting += lines.length;
    else this.#view.append(lines);
    this.#tally();
    setTimeout(() => feed === this.#feed && feed.more(), lines.length > FLOOD ? FLOOD_REST_MS : REST_MS);
  }

  #tally() {
    const { lines } = this.#buffer;
    const parts = [this.#query ? `${count(this.#view.find(lines).length)} of ${count(lines.length)} lines` : `${count(lines.length)} lines`];
    if (this.#paused) parts.push(this.#waiting ? `${count(this.#waiting)} new` : "paused");
    setText(byId("log-count"), parts.join(" · "));
  }
}
