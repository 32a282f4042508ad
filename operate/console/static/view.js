// Builds the page from text. Nothing here reads HTML: what comes from events can only become text.

// Marks that change the direction of text, or that cannot be seen, are shown by their number: a name with one of them
// must not make the text around it read otherwise.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function shown(text) {
  return String(text).replace(
    UNSEEN,
    (mark) => `⟨U+${mark.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
}

// Returns an element. Children are elements or texts; those that are null are left out.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children
      .flat()
      .filter((child) => child != null)
      .map((child) => (child instanceof Node ? child : shown(child))),
  );
  return element;
}

// What a sentence has between backticks is a command or a field.
export const prose = (text) => text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));

export const byId = (id) => document.getElementById(id);

// Puts children into an element, unless they say what is there already: so the focus and a selection stay.
export function fill(element, ...children) {
  const next = h("div", {}, ...children);
  if (!next.isEqualNode(h("div", {}, ...[...element.childNodes].map((node) => node.cloneNode(true))))) {
    element.replaceChildren(...next.childNodes);
  }
}

export function say(element, text) {
  if (element.textContent !== shown(text)) element.textContent = shown(text);
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });

export const count = (value) => (value == null ? "unknown" : whole.format(value));
export const rate = (value) =>
  value == null ? "unknown" : `${value >= 100 ? whole.format(value) : tenth.format(value)}/s`;
export const milliseconds = (value) =>
  value == null ? "none" : `${value >= 100 ? whole.format(value) : tenth.format(value)} ms`;
export const mebibytes = (value) => `${tenth.format(value / 1048576)} MiB`;

// As `status` writes durations.
export function duration(seconds) {
  if (seconds == null) return "unknown";
  for (const [unit, size] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
  ]) {
    if (seconds >= 2 * size) return `${whole.format(seconds / size)} ${unit}`;
  }
  return seconds < 10 ? `${tenth.format(seconds)} s` : `${whole.format(seconds)} s`;
}

// The time of day of a moment in seconds since 1970, in UTC, as all times of the page.
export const clock = (at, exact) => `${new Date(at * 1000).toISOString().slice(11, exact ? 19 : 16)}Z`;

// A word with a sign, so that nothing is said by colour alone.
export function badge(state, text) {
  const signs = { well: "✓", wrong: "✕", waits: "…", plain: "•" };
  return h("span", { class: `badge ${state}` }, h("span", { "aria-hidden": "true" }, signs[state]), ` ${shown(text)}`);
}

// A line to paste. It may be wider than the page, and is scrolled with the keyboard.
export function commandLine(command) {
  return h("pre", { class: "command", tabindex: "0", role: "region", "aria-label": "command" }, h("code", {}, command));
}

export function pageLink(page, why = "What to do") {
  const [file, section] = page.split("#");
  const name = `docs/${file}${section ? `, ${section.replaceAll("-", " ")}` : ""}`;
  return h("a", { href: `/docs/${page}`, target: "_blank" }, `${why}: ${name}`);
}
