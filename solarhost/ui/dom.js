/** Building and updating elements. Text is always set as text, so nothing from outside becomes HTML. */

export const byId = (id) => document.getElementById(id);

/** An element with properties (`dataset` and `aria-…` too) and children, which are nodes or text. */
export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

/** Set what changed only: a screen reader, a selection and the layout stay undisturbed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/**
 * A list whose nodes follow its items by key, so that focus and open details survive an update.
 *
 * `create(item)` returns `{node, update(item), remove?()}`.
 */
export class KeyedList {
  #container;
  #key;
  #create;
  #rows = new Map();

  constructor(container, key, create) {
    this.#container = container;
    this.#key = key;
    this.#create = create;
  }

  update(items) {
    const rows = new Map();
    let place = this.#container.firstChild;
    for (const item of items) {
      const key = this.#key(item);
      const row = this.#rows.get(key) ?? this.#create(item);
      row.update(item);
      rows.set(key, row);
      if (row.node === place) place = place.nextSibling;
      else this.#container.insertBefore(row.node, place);
    }
    for (const [key, row] of this.#rows) {
      if (rows.has(key)) continue;
      row.node.remove();
      row.remove?.();
    }
    this.#rows = rows;
  }
}
