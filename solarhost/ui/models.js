/** Models on disk, and pulls in progress. */

import { act } from "./api.js";
import { confirmed } from "./dialog.js";
import { byId, KeyedList, make, setAttribute, setText, show } from "./dom.js";
import { bytes, duration, plural } from "./format.js";
import { tell, warn } from "./notices.js";

export class Models {
  #models = new KeyedList(byId("models"), (item) => item.name, () => new ModelRow());
  #pulls;

  /** `changed()` asks for the pulls anew. */
  constructor(changed) {
    this.#pulls = new KeyedList(byId("pulls"), (item) => item.id, (item) => new PullRow(item, changed));
  }

  updateModels(models) {
    this.#models.update(models);
    const size = models.reduce((sum, item) => sum + item.size_bytes, 0);
    setText(byId("models-note"), models.length ? `${plural(models.length, "model")} · ${bytes(size)}` : "none on disk");
  }

  updatePulls(pulls) {
    this.#pulls.update(pulls);
    show(byId("pulls"), pulls.length > 0);
  }
}

class ModelRow {
  constructor() {
    this.name = make("strong", { className: "name" });
    this.facts = make("span", { className: "facts quiet" });
    this.node = make("li", { className: "row plain" }, this.name, this.facts);
  }

  update(model) {
    setText(this.name, model.model_name ?? model.source_uri);
    const parts = [bytes(model.size_bytes), plural(model.files.length, "file")];
    if (model.model_name) parts.push(model.source_uri);
    if (model.category) parts.unshift(model.category);
    setText(this.facts, parts.join(" · "));
  }
}

class PullRow {
  constructor(pull, changed) {
    this.name = make("strong", { className: "name" });
    this.facts = make("span", { className: "facts quiet" });
    this.progress = make("progress", { max: 1 });
    this.cancel = make("button", { type: "button", onclick: () => this.#cancel(pull, changed) }, "Cancel");
    this.cancel.setAttribute("aria-label", `Cancel the pull of ${pull.source_uri}`);
    this.node = make("li", { className: "row pull" }, this.name, this.facts, this.progress, this.cancel);
  }

  update(pull) {
    setText(this.name, pull.source_uri);
    setText(this.facts, progress(pull));
    setAttribute(this.progress, "aria-label", `Pull of ${pull.source_uri}`);
    if (pull.bytes_total) this.progress.value = pull.bytes_done / pull.bytes_total;
    else this.progress.removeAttribute("value");
  }

  async #cancel(pull, changed) {
    if (!(await confirmed("Cancel this pull?", `${pull.source_uri} will not be on this machine.`, "Cancel the pull"))) return;
    try {
      await act("DELETE", `models/pulls/${pull.id}`);
      tell(`The pull of ${pull.source_uri} is cancelled.`);
    } catch (failure) {
      warn(failure.message);
    }
    changed();
  }
}

function progress(pull) {
  if (pull.phase === "queued") return `waits for ${plural(pull.queue_position ?? 1, "other pull")}`;
  const parts = [pull.phase];
  if (pull.trouble) parts.push(pull.trouble);
  parts.push(pull.bytes_total ? `${bytes(pull.bytes_done)} of ${bytes(pull.bytes_total)}` : bytes(pull.bytes_done));
  if (pull.speed_bps) {
    parts.push(`${bytes(pull.speed_bps)}/s`);
    if (pull.bytes_total) parts.push(`${duration((pull.bytes_total - pull.bytes_done) / pull.speed_bps)} left`);
  }
  return parts.join(" · ");
}
