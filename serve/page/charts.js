// Charts as SVG: lines over the last minutes, and bars.

import { drawn, element, say } from "./dom.js";
import { SPAN_S, brief } from "./figures.js";

const HEIGHT = 168;
const EDGE = { left: 44, right: 10, top: 10, bottom: 24 };

/** A figure with a heading, a legend whose entries have the latest values, and a place to draw in. */
export class Chart {
  /** `series`: pairs of a point's field and its name; `unit`: of all values; `scaled`: how they lie, see below. */
  constructor(title, about, unit, series, scaled = numbers) {
    Object.assign(this, { title, unit, series, scaled });
    const id = `chart-${title.toLowerCase().replace(/\W+/g, "-")}`;
    this.values = series.map(() => element("b", null, "–"));
    const entries = series.map(([, name], place) =>
      element("li", { class: `s${place}` }, sample(place), `${name} `, this.values[place]));
    this.svg = drawn("svg", { role: "img", "aria-labelledby": `${id} ${id}-now`, height: HEIGHT });
    this.now = element("span", { id: `${id}-now`, class: "unseen" });
    this.node = element(
      "figure",
      { "aria-labelledby": id },
      element("h3", { id }, title, element("small", null, ` ${unit}`)),
      element("figcaption", null, about),
      element("ul", { class: "legend", role: "list" }, ...entries),
      this.now,
      this.svg,
    );
  }

  /** Draw points, of which the latest stands at the right edge. */
  lines(points, now_s) {
    const width = Math.max(this.svg.clientWidth, 200);
    const values = this.series.map(([field]) => points.map((point) => point[field] ?? null));
    const { y, levels } = this.scaled(values.flat());
    const x = (at_s) => EDGE.left + (width - EDGE.left - EDGE.right) * (1 - (now_s - at_s) / SPAN_S);
    const shown = points.map((point, place) => [point, place]).filter(([point]) => now_s - point.at_s <= SPAN_S);
    const drawnLines = values.map((held, series) => {
      const runs = split(shown.map(([{ at_s }, place]) => (held[place] === null ? null : [x(at_s), y(held[place])])));
      const line = drawn("path", { class: "line", d: runs.map(path).join("") });
      const areas = series || levels[0] ? [] : runs.map((run) => area(run, y(0)));
      const under = drawn("path", { class: "under", d: areas.join("") });
      return drawn("g", { class: `s${series} d${series}` }, under, line);
    });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(...grid(levels, width, y), ...minutes(width), ...drawnLines.reverse());
    const last = points.at(-1) ?? {};
    this.series.forEach(([field], place) => say(this.values[place], brief(last[field])));
    say(this.now, this.series.map(([field, name]) => `${name} ${brief(last[field])} ${this.unit}`).join(", "));
  }

  /** Draw a bar for each of some names. */
  bars(counts) {
    const width = Math.max(this.svg.clientWidth, 200);
    const all = [...counts];
    const most = Math.max(1, Math.floor((width - EDGE.left - EDGE.right) / 26));
    const held = all.length <= most ? all : gathered(all, most);
    const { y, levels } = this.scaled(held.map(([, count]) => count));
    const step = (width - EDGE.left - EDGE.right) / Math.max(held.length, 4);
    const bars = held.map(([, count], place) => {
      const across = { x: EDGE.left + step * (place + 0.15), width: step * 0.7, rx: 2 };
      return drawn("rect", { ...across, y: y(count), height: y(0) - y(count) });
    });
    const names = held.map(([name], place) =>
      drawn("text", { x: EDGE.left + step * (place + 0.5), y: HEIGHT - 7, "text-anchor": "middle" }, name));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(...grid(levels, width, y), drawn("g", { class: "bars s0" }, ...bars), ...names);
    const [name, count] = held.reduce((best, bar) => (bar[1] > best[1] ? bar : best), ["–", 0]);
    say(this.values[0], count ? name : "–");
    say(this.now, held.map(([size, number]) => `${number} of ${size}`).join(", ") || "none yet");
  }
}

/** A piece of a line as the chart draws it. */
function sample(place) {
  const line = drawn("path", { class: "line", d: "M1 4H23" });
  return drawn("svg", { class: `sample s${place} d${place}`, viewBox: "0 0 24 8", "aria-hidden": "true" }, line);
}

/** Neighbours together, where there are more than have room. */
function gathered(pairs, most) {
  const each = Math.ceil(pairs.length / most);
  const found = [];
  for (let first = 0; first < pairs.length; first += each) {
    const part = pairs.slice(first, first + each);
    const [low, high] = [part[0][0], part.at(-1)[0]];
    found.push([low === high ? low : `${low}–${high}`, part.reduce((total, [, count]) => total + count, 0)]);
  }
  return found;
}

// How high values lie, and the levels that are marked: a scale for all values of a chart.

const from_bottom = (share) => EDGE.top + (HEIGHT - EDGE.top - EDGE.bottom) * (1 - share);

function linear(values, steps, least) {
  const most = Math.max(0, ...values);
  const power = 10 ** Math.floor(Math.log10(most > 0 ? most : 1));
  const top = steps.map((step) => step * power).find((each) => each >= least && each >= most * 0.999999);
  return { y: (value) => from_bottom(value / top), levels: [0, top / 2, top] };
}

export const numbers = (values) => linear(values, [1, 2, 5, 10], 0);

/** Of whole numbers: half of the highest level is one too. */
export const whole = (values) => linear(values, [2, 4, 10, 20], 2);

/** Each level is ten times the one below it. */
export function logarithmic(values) {
  const held = values.filter((value) => value > 0);
  const low = held.length ? Math.floor(Math.log10(Math.min(...held))) : 0;
  const high = Math.max(low + 1, held.length ? Math.ceil(Math.log10(Math.max(...held))) : 0);
  const levels = Array.from({ length: high - low + 1 }, (_, place) => 10 ** (low + place));
  return { y: (value) => from_bottom(value > 0 ? (Math.log10(value) - low) / (high - low) : 0), levels };
}

const short = (value) =>
  value >= 10_000 ? value.toLocaleString("en", { notation: "compact" }) : brief(value);

const grid = (levels, width, y) =>
  levels.map((value) =>
    drawn("g", { class: "grid" },
      drawn("path", { d: `M${EDGE.left} ${y(value)}H${width - EDGE.right}` }),
      drawn("text", { x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value))));

/** What stands below the lines: how long ago. */
function minutes(width) {
  const across = width - EDGE.left - EDGE.right;
  return [["start", 0, "2 min ago"], ["middle", 0.5, "1 min ago"], ["end", 1, "now"]].map(([anchor, share, text]) =>
    drawn("text", { x: EDGE.left + share * across, y: HEIGHT - 7, "text-anchor": anchor }, text));
}

/** The points between two gaps. */
function split(points) {
  const runs = [[]];
  for (const each of points) {
    if (each === null) runs.push([]);
    else runs.at(-1).push(each);
  }
  return runs.filter((run) => run.length);
}

const place = ([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`;
const path = (run) => (run.length === 1 ? `M${place(run[0])}h.1` : `M${run.map(place).join("L")}`);
const area = (run, floor) => `M${[[run[0][0], floor], ...run, [run.at(-1)[0], floor]].map(place).join("L")}Z`;
