// Elements and numbers. All text reaches the page as text nodes: no string of a model, a tenant or a server is
// ever parsed as markup.

/** Returns an element. attributes: by name; "on" + event: a listener. children: elements, or text. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Returns an SVG element. */
export function svg(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** Sets an element's text, unless it has it: an unchanged page costs no layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A number in few characters: 1,234, 12.3 k, 4.56 M. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (Math.abs(value) >= 1e5) return `${Math.round(value / 1e3)} k`;
  if (Math.abs(value) >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toPrecision(2);
}

/** A duration given in seconds. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0001) return "0 s";
  if (seconds < 0.9995) return `${(seconds * 1e3).toPrecision(seconds < 0.1 ? 2 : 3)} ms`;
  if (seconds < 60) return `${seconds.toPrecision(seconds < 9.95 ? 2 : 3)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** A share from 0 to 1. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  const hundredths = 100 * share;
  if (hundredths > 0 && hundredths < 0.0001) return "<0.0001 %";
  if (hundredths > 0 && hundredths < 0.1) return `${hundredths.toFixed(hundredths < 0.001 ? 4 : 3)} %`;
  return `${hundredths.toFixed(hundredths > 0 && hundredths < 9.95 ? 1 : 0)} %`;
}

/** A text of at most so many characters. */
export function clipped(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** Time of day of Unix time in seconds. */
export function clock(seconds) {
  return new Date(seconds * 1e3).toLocaleTimeString("en-GB");
}
