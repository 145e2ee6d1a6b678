/** The question before something that can't be taken back. */

import { byId } from "./dom.js";

/** Resolves to true if the operator says yes; Escape and Cancel say no. */
export function confirmed(title, text, yes) {
  const dialog = byId("confirm");
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = yes;
  return new Promise((resolve) => {
    let answer = false;
    byId("confirm-yes").onclick = () => {
      answer = true;
      dialog.close();
    };
    byId("confirm-no").onclick = () => dialog.close();
    dialog.onclose = () => resolve(answer);
    dialog.showModal();
    byId("confirm-no").focus();
  });
}
