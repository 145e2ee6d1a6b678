/** Numbers and times as people read them. */

const whole = new Intl.NumberFormat("en");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export const count = (number) => whole.format(number);

export function gib(number) {
  if (number === null || number === undefined) return "?";
  return number >= 100 ? number.toFixed(0) : number.toFixed(1);
}

export function bytes(number) {
  let unit = 0;
  let value = number;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

/** Seconds from an ISO 8601 time until now; negative for one that is still to come. */
export const since = (iso) => (Date.now() - Date.parse(iso)) / 1000;

export const plural = (number, one, many = one + "s") => `${count(number)} ${number === 1 ? one : many}`;

/** The local time of day, for a line that came at an ISO 8601 time. */
export function clock(iso) {
  const at = new Date(iso);
  const two = (value) => String(value).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
