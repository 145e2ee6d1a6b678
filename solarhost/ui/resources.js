/** GPU, RAM and disk as bars, and who was promised what. */

import { byId, KeyedList, make, setAttribute, setText, show } from "./dom.js";
import { duration, gib, since } from "./format.js";

const PARTS = ["used", "promised"];

export class Resources {
  #meters = new KeyedList(byId("meters"), (item) => item.key, () => new Meter());
  #body = make("tbody");
  #table = table(this.#body);
  #rows = new KeyedList(this.#body, (item) => item.key, () => new Promised());

  constructor() {
    byId("reservations").append(this.#table);
  }

  /** `names` tells the alias of an instance's id. */
  update(resources, names) {
    this.#meters.update([
      ...resources.gpus.map(gpu),
      dimension("RAM", resources.ram),
      dimension("Disk", resources.disk),
    ]);
    const charges = resources.instance_charges.map((item) => charge(item, names));
    const rows = [...charges, ...resources.reservations.map(reservation)];
    this.#rows.update(rows);
    show(this.#table, rows.length > 0);
    const problem = resources.telemetry.gpu_problem;
    setText(byId("resources-note"), problem ?? (resources.gpus.length ? "" : "no GPU"));
  }
}

class Meter {
  constructor() {
    this.name = make("span", { className: "meter-name" });
    this.figures = make("span", { className: "quiet" });
    this.parts = PARTS.map((part) => make("span", { className: part }));
    this.track = make("div", { className: "track", role: "meter", "aria-valuemin": "0", "aria-valuemax": "100" }, ...this.parts);
    this.node = make("div", { className: "meter" }, make("div", { className: "meter-text" }, this.name, this.figures), this.track);
  }

  update(item) {
    const share = (amount) => (item.total ? Math.min(100, (100 * amount) / item.total) : 0);
    const text = item.problem ?? figures(item);
    setText(this.name, item.name);
    setText(this.figures, text);
    PARTS.forEach((part, index) => {
      this.parts[index].style.width = `${share(item[part]).toFixed(2)}%`;
    });
    setAttribute(this.track, "aria-label", item.name);
    setAttribute(this.track, "aria-valuenow", share(item.used + item.promised).toFixed(0));
    setAttribute(this.track, "aria-valuetext", text);
    setAttribute(this.track, "data-full", String(share(item.used + item.promised) > 90));
  }
}

class Promised {
  constructor() {
    this.cells = Array.from({ length: 6 }, (_, index) => make(index ? "td" : "th"));
    this.cells[0].scope = "row";
    this.node = make("tr", {}, ...this.cells);
  }

  update(item) {
    item.cells.forEach((text, index) => setText(this.cells[index], text));
  }
}

function table(body) {
  const columns = ["Promised to", "GPU", "VRAM", "RAM", "Disk", "Until"];
  const head = columns.map((name) => make("th", { scope: "col" }, name));
  const caption = make("caption", {}, "GiB, promised / used now");
  const inner = make("table", {}, caption, make("thead", {}, make("tr", {}, ...head)), body);
  return make("div", { className: "scroll", hidden: true, tabIndex: 0, role: "region", "aria-label": "Reservations" }, inner);
}

function gpu(item) {
  return bar(`gpu-${item.uuid ?? item.index}`, `GPU ${item.index} ${item.name ?? ""}`, item.used_gb, item);
}

function dimension(name, item) {
  return bar(name, name, item.system_used_gb, item);
}

function bar(key, name, used, item) {
  return {
    key,
    name,
    total: item.total_gb,
    used: used ?? 0,
    promised: item.reserved_headroom_gb, // of which nothing is used yet
    available: item.available_gb,
    problem: item.problem,
  };
}

function figures(item) {
  if (item.total === null) return "can’t be read";
  const parts = [`${gib(item.used)} of ${gib(item.total)} GiB used`];
  if (item.promised >= 0.05) parts.push(`${gib(item.promised)} promised`);
  parts.push(`${gib(item.available)} free`);
  return parts.join(" · ");
}

const pair = (asked, used) => (asked || used ? `${gib(asked ?? 0)} / ${gib(used ?? 0)}` : "–");

function reservation(item) {
  const until = since(item.expires_at);
  return {
    key: item.id,
    cells: [
      `job ${item.job_id} (${item.status})`,
      item.gpu_ids?.join(", ") || "–",
      pair(item.vram_gb, item.actual_vram_gb),
      pair(item.ram_gb, item.actual_ram_gb),
      pair(item.disk_gb, item.actual_disk_gb),
      until < 0 ? `in ${duration(-until)}` : "over",
    ],
  };
}

function charge(item, names) {
  return {
    key: item.instance_id,
    cells: [
      names.get(item.instance_id) ?? item.instance_id,
      item.gpu_ids?.join(", ") || "–",
      pair(item.vram_gb, item.actual_vram_gb),
      pair(0, item.actual_ram_gb),
      "–",
      "stopped",
    ],
  };
}
