/** The key: asked once, kept by this tab until it is closed. */

const NAME = "solar-host-key";

export const storedKey = () => sessionStorage.getItem(NAME);
export const storeKey = (key) => sessionStorage.setItem(NAME, key);
export const forgetKey = () => sessionStorage.removeItem(NAME);

/** The key as a WebSocket subprotocol, since browsers can't send headers with an upgrade. */
export function keyProtocol() {
  const bytes = new TextEncoder().encode(storedKey() ?? "");
  const base64 = btoa(String.fromCharCode(...bytes));
  return "solar-key." + base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
