/** How the agent is: its problems, its version, and its link to solar-control. */

import { byId, KeyedList, make, setAttribute, setText, show } from "./dom.js";
import { duration, plural, since } from "./format.js";

const LINKS = {
  disabled: "no solar-control",
  connecting: "control: connecting",
  pending: "control: waits for approval",
  registered: "control: connected",
  rejected: "control: rejected",
  unauthorized: "control: key refused",
};

export class Health {
  #problems = new KeyedList(byId("problems"), (text) => text, (text) => ({ node: make("li", {}, text), update() {} }));

  update(health) {
    const problems = health.problems ?? [];
    this.#chip(health.status, problems.length ? plural(problems.length, "problem") : "healthy");
    this.#problems.update(problems);
    show(byId("problems"), problems.length > 0);
    setText(byId("version"), health.version);
    this.#link(health.control);
  }

  /** The agent does not answer. */
  lost() {
    this.#chip("lost", "not answering, trying again…");
  }

  #chip(status, text) {
    setAttribute(byId("health"), "data-status", status);
    setText(byId("health"), text);
  }

  #link(link) {
    const parts = [LINKS[link.state] ?? link.state];
    if (link.state !== "disabled") parts.push(duration(since(link.since)));
    setAttribute(byId("link"), "data-link", link.state);
    setAttribute(byId("link"), "title", [link.url, link.error].filter(Boolean).join("\n"));
    setText(byId("link"), link.error ? `${parts.join(" · ")} · ${link.error}` : parts.join(" · "));
  }
}
