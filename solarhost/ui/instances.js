/** The instances: what they are, what they do right now, and the buttons that change it. */

import { act } from "./api.js";
import { confirmed } from "./dialog.js";
import { byId, KeyedList, make, setAttribute, setText, show } from "./dom.js";
import { count, duration, plural, since } from "./format.js";
import { LiveStates } from "./livestate.js";
import { tell, warn } from "./notices.js";

const LIVE = new Set(["running"]);
const CAN = {
  start: new Set(["stopped", "failed"]),
  stop: new Set(["starting", "running", "failed"]),
  restart: new Set(["running"]),
};
const QUESTIONS = {
  stop: ["Stop", "Its server ends and requests that it is answering are cut off."],
  restart: ["Restart", "Its server ends, requests that it is answering are cut off, and the model is loaded again."],
};
const DONE = { start: "is running", stop: "is stopped", restart: "is running again" };

export class Instances {
  #live = new LiveStates();
  #list;

  /** `changed()` asks for the list anew; `openLog(instance)` shows a log. */
  constructor(changed, openLog) {
    const context = { changed, openLog, live: this.#live };
    this.#list = new KeyedList(byId("instances"), (item) => item.id, (item) => new Row(item, context));
  }

  update(instances) {
    const order = [...instances].sort((a, b) => a.config.alias.localeCompare(b.config.alias, "en", { numeric: true }));
    this.#list.update(order);
    const running = instances.filter((item) => item.status === "running").length;
    const failed = instances.filter((item) => item.status === "failed").length;
    const parts = [`${count(running)} of ${plural(instances.length, "instance")} running`];
    if (failed) parts.push(`${count(failed)} failed`);
    setText(byId("instances-note"), instances.length ? parts.join(" · ") : "none yet: solar-host instances create");
  }
}

class Row {
  #context;
  #instance;
  #buttons = {};
  #busy = false; // an action of this page is under way

  constructor(instance, context) {
    this.#context = context;
    this.#instance = instance;
    this.alias = make("strong", { className: "name" });
    this.status = make("span", { className: "chip" });
    this.facts = make("span", { className: "facts quiet" });
    this.activity = make("span", { className: "activity" });
    this.progress = make("progress", { max: 1, hidden: true });
    this.problem = make("p", { className: "problem", hidden: true });
    const buttons = make("div", { className: "buttons" });
    for (const verb of ["start", "stop", "restart"]) {
      const label = verb[0].toUpperCase() + verb.slice(1);
      this.#buttons[verb] = make("button", { type: "button", onclick: () => this.#do(verb) }, label);
      buttons.append(this.#buttons[verb]);
    }
    this.#buttons.log = make("button", { type: "button", onclick: () => context.openLog(this.#instance) }, "Log");
    buttons.append(this.#buttons.log);
    this.node = make(
      "li",
      { className: "row instance" },
      make("div", { className: "title" }, this.alias, this.status),
      this.facts,
      make("div", { className: "now" }, this.activity, this.progress),
      buttons,
      this.problem,
    );
    this.node.dataset.id = instance.id;
  }

  update(instance) {
    this.#instance = instance;
    const { config, status } = instance;
    setText(this.alias, config.alias);
    setText(this.status, status);
    setAttribute(this.status, "data-status", status);
    setText(this.facts, facts(instance));
    setText(this.problem, instance.error_message ?? "");
    show(this.problem, status === "failed" && Boolean(instance.error_message));
    for (const [verb, button] of Object.entries(this.#buttons)) {
      setAttribute(button, "aria-label", `${button.textContent} ${config.alias}`);
      if (verb in CAN) show(button, CAN[verb].has(status));
      if (verb in CAN) button.disabled = this.#busy && verb !== "stop";
    }
    if (LIVE.has(status)) this.#context.live.start(instance.id, (state) => this.#showState(state));
    else {
      this.#context.live.stop(instance.id);
      this.#showState(null);
    }
  }

  remove() {
    this.#context.live.stop(this.#instance.id);
  }

  #showState(state) {
    setText(this.activity, state === null ? "" : activity(state));
    setAttribute(this.activity, "data-phase", state?.phase ?? "none");
    const prefilling = state?.phase === "prefill" && state.prefill_progress !== null;
    show(this.progress, prefilling);
    setAttribute(this.progress, "aria-label", `Prompt of ${this.#instance.config.alias} read`);
    if (prefilling) this.progress.value = state.prefill_progress;
  }

  async #do(verb) {
    const { id, config } = this.#instance;
    const question = this.#instance.status === "failed" ? undefined : QUESTIONS[verb]; // nothing runs
    if (question && !(await confirmed(`${question[0]} ${config.alias}?`, question[1], question[0]))) return;
    this.#busy = true;
    this.update(this.#instance);
    const doing = act("POST", `instances/${id}/${verb}`);
    this.#context.changed(); // shows `starting` and `stopping`, which may take minutes
    try {
      await doing;
      tell(`${config.alias} ${DONE[verb]}.`);
    } catch (failure) {
      warn(`${config.alias}: ${failure.message}`);
    }
    this.#busy = false;
    this.update(this.#instance);
    this.#context.changed();
  }
}

function facts(instance) {
  const parts = [instance.config.backend_type];
  if (instance.port) parts.push(`port ${instance.port}`);
  if (instance.context_size) parts.push(`${count(instance.context_size)} context`);
  if (instance.gpu_ids) parts.push(`GPU ${instance.gpu_ids.join(", ")}`);
  if (instance.status === "running" && instance.started_at) parts.push(`up ${duration(since(instance.started_at))}`);
  if (instance.managed_by) parts.push(`managed by ${instance.managed_by}`);
  if (instance.status === "stopped" && instance.reason) parts.push(instance.reason.replaceAll("_", " "));
  return parts.join(" · ");
}

function activity(state) {
  if (!state.busy) return "idle";
  const parts = [state.phase];
  if (state.phase === "prefill" && state.prefill_progress !== null) parts.push(`${Math.round(state.prefill_progress * 100)} %`);
  if (state.generated_tokens) parts.push(plural(state.generated_tokens, "token"));
  if (state.decode_tps) parts.push(`${state.decode_tps.toFixed(1)} tokens/s`);
  if (state.active_slots > 1) parts.push(`${state.active_slots} requests`);
  return parts.join(" · ");
}
