/** The log panel of one instance: follows, pauses, searches, and goes on after a reconnect. */

import { get } from "./api.js";
import { byId, setText, show } from "./dom.js";
import { count } from "./format.js";
import { LogBuffer } from "./logbuffer.js";
import { LogView } from "./logview.js";
import { Socket } from "./socket.js";

const FIRST_LINES = 2000;
const DRAW_EVERY_MS = 60; // a screen reader, a search and the rest of the page need their turn
const SEARCH_AFTER_MS = 120;
const SILENCE_MS = 700; // nothing in memory by then: the file may have lines
const LINKS = { connecting: "connecting…", live: "live", waiting: "connection lost, trying again…", ended: "ended: the instance was deleted" };
const narrow = matchMedia("(max-width: 1099px)");

export class Log {
  #view = new LogView(byId("log-lines"));
  #buffer = null;
  #socket = null;
  #paused = false;
  #waiting = 0; // lines that came while paused
  #query = "";
  #drawnAt = 0;
  #opener = null; // gets the focus back
  #id = null;

  constructor() {
    byId("log-close").onclick = () => this.close();
    byId("log-pause").onclick = () => this.#pause(!this.#paused);
    byId("log-newest").onclick = () => this.#pause(false);
    byId("log-wrap").onchange = (event) => byId("log-lines").classList.toggle("long", !event.target.checked);
    byId("log").onkeydown = (event) => {
      if (event.key === "Escape" && !(event.target.id === "log-search" && event.target.value)) this.close();
    };
    // Scrolling away from the end is a pause; back at the end it goes on.
    byId("log-lines").onwheel = (event) => {
      if (event.deltaY < 0) this.#pause(true);
    };
    byId("log-lines").ontouchmove = () => this.#view.atEnd || this.#pause(true);
    byId("log-lines").onkeydown = (event) => {
      if (["ArrowUp", "PageUp", "Home"].includes(event.key)) this.#pause(true);
      if (event.key === "End") this.#pause(false);
    };
    let timer = 0;
    byId("log-search").oninput = (event) => {
      clearTimeout(timer);
      timer = setTimeout(() => this.#search(event.target.value), SEARCH_AFTER_MS);
    };
    narrow.onchange = () => this.#cover();
    requestAnimationFrame((at) => this.#draw(at));
  }

  open(instance) {
    this.#socket?.close();
    this.#opener = document.activeElement;
    const buffer = new LogBuffer();
    this.#buffer = buffer;
    this.#id = instance.id;
    setText(byId("log-title"), `Log of ${instance.config.alias}`);
    this.#view.replace([], this.#query);
    show(byId("log"), true);
    document.body.classList.add("with-log");
    this.#cover();
    this.#pause(false);
    byId("log-title").focus();
    this.#socket = new Socket(
      () => `instances/${instance.id}/logs?` + (buffer.lastSeq === null ? `tail=${FIRST_LINES}` : `since=${buffer.lastSeq}`),
      (text) => buffer.push(text),
      (link) => {
        setText(byId("log-link"), LINKS[link]);
        byId("log-link").dataset.link = link;
      },
    );
    setTimeout(() => this.#readFile(instance.id, buffer), SILENCE_MS);
  }

  close() {
    this.#socket?.close();
    this.#socket = null;
    this.#buffer = null;
    this.#id = null;
    show(byId("log"), false);
    document.body.classList.remove("with-log");
    this.#cover();
    this.#opener?.focus();
  }

  /** On a narrow screen the panel covers the rest, which then must not get the focus. */
  #cover() {
    byId("content").inert = narrow.matches && this.#id !== null;
  }

  /** The agent keeps the lines of an instance that ended before its own start on disk only. */
  async #readFile(id, buffer) {
    if (buffer !== this.#buffer || buffer.lastSeq !== null) return;
    try {
      const lines = await get(`instances/${id}/logs?tail=${FIRST_LINES}`);
      if (buffer !== this.#buffer || buffer.lastSeq !== null) return;
      buffer.lines = lines;
      this.#redraw();
    } catch {
      setText(byId("log-count"), "no lines yet");
    }
  }

  #pause(paused) {
    this.#paused = paused;
    const button = byId("log-pause");
    button.setAttribute("aria-pressed", String(paused));
    setText(button, paused ? "Resume" : "Pause");
    show(byId("log-newest"), paused);
    if (!paused && this.#buffer) {
      this.#waiting = 0;
      this.#redraw();
    }
    this.#tally();
  }

  #search(query) {
    this.#query = query;
    if (this.#buffer) this.#redraw();
  }

  #redraw() {
    this.matching = this.#view.replace(this.#buffer.lines, this.#query);
    if (!this.#paused) this.#view.toEnd();
    this.#tally();
  }

  #draw(at) {
    requestAnimationFrame((next) => this.#draw(next));
    if (this.#buffer === null || at - this.#drawnAt < DRAW_EVERY_MS) return;
    this.#drawnAt = at;
    const fresh = this.#buffer.take();
    if (fresh.length === 0) return;
    if (this.#paused) this.#waiting += fresh.length;
    else {
      this.#view.append(fresh);
      this.#view.toEnd();
    }
    this.#tally();
  }

  #tally() {
    const lines = this.#buffer?.lines.length ?? 0;
    const parts = [];
    if (this.#query) {
      const query = this.#query.toLowerCase();
      const found = (this.#buffer?.lines ?? []).filter((line) => (line.line ?? "").toLowerCase().includes(query));
      parts.push(`${count(found.length)} of ${count(lines)} lines`);
    } else parts.push(`${count(lines)} lines`);
    if (this.#paused) parts.push(this.#waiting ? `${count(this.#waiting)} new` : "paused");
    setText(byId("log-count"), parts.join(" · "));
  }
}
