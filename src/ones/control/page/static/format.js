// Numbers and times as text.

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole >= 172800) return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
  const minutes = Math.floor(whole / 60);
  const rest = String(whole % 60).padStart(2, "0");
  if (minutes < 60) return `${minutes}:${rest}`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

export function percent(value) {
  return value === null || value === undefined ? "" : `${(100 * value).toFixed(1)} %`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** The time of day, with the date if it is another day. */
export function clock(at, now = Date.now() / 1000) {
  const date = new Date(1000 * at);
  const same = date.toDateString() === new Date(1000 * now).toDateString();
  return same ? CLOCK.format(date) : `${DAY.format(date)} ${CLOCK.format(date)}`;
}

/** The label of an axis mark; marks are `step` seconds apart. */
export function axisClock(at, step) {
  const text = CLOCK.format(new Date(1000 * at));
  if (step >= 86400) return DAY.format(new Date(1000 * at));
  return step < 60 ? text : text.slice(0, 5);
}

export const iso = (at) => new Date(1000 * at).toISOString();

/** ["3:20", "2:50 to 4:10"], or null if there is no forecast. */
export function eta(card, now) {
  if (card.ended_at !== null || card.eta === null) return null;
  const left = (at) => duration(at - now);
  return [left(card.eta), `${left(card.eta_low)} to ${left(card.eta_high)}`];
}

/** What is done in the unit of the job; completed epochs, and the completed part of the next one. */
export function progress(card) {
  const { unit, done, total } = card.work ?? { unit: "epochs" };
  if (unit !== "epochs") return `${number(done)}${total === null ? "" : ` of ${number(total)}`} ${unit}`;
  const known = card.dataset_size || card.epochs;
  if (!known || card.ended_at !== null) return known ? String(card.epochs) : "";
  const part = card.dataset_size ? card.samples / card.dataset_size - card.epochs : 0;
  const begun = part > 0.005 && part < 1 ? ` + ${Math.floor(100 * part)} %` : "";
  const planned = card.planned_epochs === null ? "" : ` of ${card.planned_epochs}`;
  return card.epochs + planned + begun;
}

const GOOD = ["running", "finished", "converged"];
const BAD = ["failed", "refused"];
const WARN = ["changing", "starting", "stopping"];

export function stateClass(state) {
  if (GOOD.includes(state)) return "is-good";
  if (BAD.includes(state)) return "is-bad";
  return WARN.includes(state) ? "is-warn" : "";
}
