/** Jobs; an opened one shows its steps with the last lines that they printed. */

import { act, get } from "./api.js";
import { confirmed } from "./dialog.js";
import { byId, KeyedList, make, setAttribute, setText, show } from "./dom.js";
import { duration, plural, since } from "./format.js";
import { tell, warn } from "./notices.js";
import { poll } from "./poll.js";

const READ_EVERY_MS = 2000;
const ALIVE = new Set(["pending", "running"]);

export class Jobs {
  #list;

  /** `changed()` asks for the jobs anew. */
  constructor(changed) {
    this.#list = new KeyedList(byId("jobs"), (item) => item.job_id, (item) => new JobRow(item, changed));
  }

  update(jobs) {
    this.#list.update([...jobs].reverse());
    const alive = jobs.filter((job) => ALIVE.has(job.status)).length;
    setText(byId("jobs-note"), jobs.length ? `${alive} under way · ${plural(jobs.length, "job")}` : "none");
  }
}

class JobRow {
  #job;
  #reading = null;
  #steps = make("ol", { className: "steps" });
  #list = new KeyedList(this.#steps, (step) => step.name, () => new StepRow());

  constructor(job, changed) {
    this.#job = job;
    this.name = make("strong", { className: "name" });
    this.status = make("span", { className: "chip" });
    this.facts = make("span", { className: "facts quiet" });
    this.problem = make("p", { className: "problem", hidden: true });
    this.cancel = make("button", { type: "button", onclick: () => this.#cancel(changed) }, "Cancel");
    this.cancel.setAttribute("aria-label", `Cancel job ${job.job_id}`);
    this.details = make(
      "details",
      { ontoggle: () => this.#toggle() },
      make("summary", {}, this.name, this.status, this.facts),
      this.problem,
      this.#steps,
    );
    this.node = make("li", { className: "row job" }, this.details, this.cancel);
  }

  update(job) {
    this.#job = job;
    setText(this.name, job.name);
    setText(this.status, job.status);
    setAttribute(this.status, "data-status", job.status);
    setText(this.facts, facts(job));
    setText(this.problem, job.error_message ?? "");
    show(this.problem, Boolean(job.error_message));
    show(this.cancel, ALIVE.has(job.status));
  }

  remove() {
    this.#reading?.stop();
  }

  #toggle() {
    this.#reading?.stop();
    this.#reading = this.details.open ? poll(READ_EVERY_MS, () => this.#read()) : null;
  }

  async #read() {
    try {
      const job = await get(`jobs/${encodeURIComponent(this.#job.job_id)}`);
      this.#list.update(job.steps);
      if (!ALIVE.has(job.status)) this.#reading?.stop();
    } catch (failure) {
      if (failure.status === 404) this.#reading?.stop();
    }
  }

  async #cancel(changed) {
    const { job_id: id, name } = this.#job;
    if (!(await confirmed(`Cancel ${name}?`, "Its containers end, and its workspace and record are removed.", "Cancel the job"))) return;
    try {
      await act("DELETE", `jobs/${encodeURIComponent(id)}`);
      tell(`${name} is cancelled.`);
    } catch (failure) {
      warn(`${name}: ${failure.message}`);
    }
    changed();
  }
}

class StepRow {
  constructor() {
    this.name = make("span", { className: "name" });
    this.status = make("span", { className: "chip" });
    this.facts = make("span", { className: "facts quiet" });
    this.lines = make("pre", { tabIndex: 0 });
    this.node = make("li", {}, make("div", { className: "title" }, this.name, this.status, this.facts), this.lines);
  }

  update(step) {
    setText(this.name, step.name);
    setText(this.status, step.status);
    setAttribute(this.status, "data-status", step.status);
    setText(this.facts, outcome(step));
    setAttribute(this.lines, "aria-label", `Last lines of ${step.name}`);
    const atEnd = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < 30;
    setText(this.lines, step.recent_logs.map((entry) => entry.line).join("\n"));
    show(this.lines, step.recent_logs.length > 0);
    if (atEnd) this.lines.scrollTop = this.lines.scrollHeight;
  }
}

function facts(job) {
  const parts = [job.job_id, plural(job.steps.length, "step")];
  if (job.status === "running") parts.push(`at ${job.steps[job.current_step_index]?.name ?? "its end"}`);
  if (job.started_at) parts.push(duration(spent(job)));
  return parts.join(" · ");
}

function spent(job) {
  return job.finished_at ? (Date.parse(job.finished_at) - Date.parse(job.started_at)) / 1000 : since(job.started_at);
}

function outcome(step) {
  const parts = [];
  if (step.duration_s !== null) parts.push(duration(step.duration_s));
  else if (step.started_at) parts.push(duration(since(step.started_at)));
  if (step.exit_code) parts.push(`exit code ${step.exit_code}`);
  if (step.signal) parts.push(`signal ${step.signal}`);
  if (step.oom_killed) parts.push("out of memory");
  return parts.join(" · ");
}
