/** What became of an action: said once, then gone; a failure stays until it is dismissed. */

import { byId, make } from "./dom.js";

const SHOWN_MS = 6000;
const MOST = 4;

export const tell = (text) => add(text, false);
export const warn = (text) => add(text, true);

function add(text, stays) {
  const notices = byId("notices");
  const close = make("button", { type: "button", "aria-label": "Dismiss" }, "×");
  const notice = make("div", { className: stays ? "notice failure" : "notice" }, make("p", {}, text), close);
  close.onclick = () => notice.remove();
  notices.append(notice);
  while (notices.children.length > MOST) notices.firstChild.remove();
  if (!stays) setTimeout(() => notice.remove(), SHOWN_MS);
}
