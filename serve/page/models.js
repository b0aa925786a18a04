// What is loaded: a row of a table for each model, with its receipt below it.

import { defined, element, say } from "./dom.js";
import { brief, bytes, sum } from "./figures.js";

const COLUMNS = ["Model", "Variant", "Version", "Size", "Accuracy", "Requests/s", "p50", "Receipt"];

/** The table of models, which `update` tells the latest figures. */
export class Models {
  constructor(place) {
    this.place = place;
    this.cells = new Map();
  }

  show({ models, held_back, unloaded, routes }) {
    const were_open = [...this.cells].filter(([, { toggle }]) => toggle?.ariaExpanded === "true");
    const open = new Set(were_open.map(([name]) => name));
    this.cells.clear();
    const titles = COLUMNS.map((name) => element("th", { scope: "col", role: "columnheader" }, name));
    const head = element("tr", { role: "row" }, ...titles);
    const table = element(
      "table",
      { role: "table", class: "models", "aria-labelledby": "models-h" },
      element("thead", { role: "rowgroup" }, head),
      element("tbody", { role: "rowgroup" }, ...models.flatMap((model) => this.rows(model, open.has(model.name)))),
    );
    this.place.replaceChildren(...(models.length ? [table] : [element("p", { class: "soft" }, "No model is loaded.")]));
    this.place.append(...Object.entries(held_back).map(held), ...unloaded.map(absent));
    this.place.append(...Object.entries(routes).map(route));
  }

  rows(model, open) {
    const rate = element("span", null, "–");
    const latency = element("span", null, "–");
    const state = element("span", { class: "badge" });
    const id = `receipt-${model.name}`;
    const shuts = { "aria-expanded": "false", "aria-controls": id, "aria-label": `Receipt of ${model.name}` };
    const toggle = model.receipt ? element("button", { type: "button", class: "quiet", ...shuts }, "Show") : null;
    const name = element("span", { class: "name" }, model.name);
    const first = element("th", { scope: "row", role: "rowheader" }, name, " ", state);
    const cells = [
      [variant(model)],
      [model.version],
      [bytes(model.bytes)],
      accuracy(model.accuracy),
      [rate],
      [latency],
      [toggle ?? element("span", { class: "soft" }, "none: unverified")],
    ].map((content, place) => {
      const inner = element("span", null, ...content);
      return element("td", { role: "cell", "data-name": COLUMNS[place + 1] }, inner);
    });
    const wide = element("td", { role: "cell", colspan: COLUMNS.length }, receipt(model));
    const below = element("tr", { role: "row", id, class: "receipt", hidden: true }, wide);
    const set = (shows) => {
      toggle.ariaExpanded = String(shows);
      toggle.textContent = shows ? "Hide" : "Show";
      below.hidden = !shows;
    };
    toggle?.addEventListener("click", () => set(below.hidden));
    if (toggle && open) set(true);
    this.cells.set(model.name, { rate, latency, state, toggle });
    return [element("tr", { role: "row" }, first, ...cells), ...(toggle ? [below] : [])];
  }

  /** `looks` are the latest. */
  update(looks, bounds) {
    const last = looks.held.at(-1);
    for (const [name, { rate, latency, state }] of this.cells) {
      const point = looks.latest(name, bounds);
      say(rate, point.answered === undefined ? "–" : brief(point.answered + point.failed));
      say(latency, point.p50 === undefined || point.p50 === null ? "–" : `${brief(point.p50)} ms`);
      const ready = last.models[name]?.ready ?? false;
      say(state, ready ? "ready" : "not ready");
      state.classList.toggle("bad", !ready);
    }
  }
}

const variant = ({ format, precision, runtime }) =>
  [format, precision, runtime === format ? null : `by ${runtime}`].filter(Boolean).join(" ");

function accuracy(held) {
  if (!held) return [element("span", { class: "soft" }, "not recorded")];
  const share = (number) => `${(100 * number).toFixed(1)} %`;
  const measured = held.of === "labels";
  const said = measured
    ? `source ${share(held.source)}; ${held.samples} labelled samples`
    : `agrees with its source on ${share(held.share)} of ${held.samples} samples`;
  return [measured ? share(held.share) : "–", " ", element("small", { class: "soft" }, said)];
}

function receipt(model) {
  const shape = (tensor) => `${tensor.name} ${tensor.datatype} [${tensor.shape.join(", ")}]`;
  const facts = [
    ["Takes", model.inputs.map(shape).join("; ")],
    ["Answers", model.outputs.map(shape).join("; ")],
    ["Batches", `up to ${model.max_batch} rows`],
    ...(model.receipt ?? []),
  ];
  return element("dl", null, ...facts.flatMap(([term, said]) => defined(term, said)));
}

const held = ([name, reason]) => element("p", { class: "notice" }, element("b", null, name), `: ${reason}`);

const absent = (name) => element("p", { class: "soft" }, element("b", null, name), " is not loaded.");

function route([name, weights]) {
  const targets = Object.entries(weights);
  const all = sum(targets.map(([, weight]) => weight));
  const share = (weight) => (targets.length > 1 ? `${brief((100 * weight) / all)} % ` : "");
  const shares = targets.map(([target, weight]) => `${share(weight)}to ${target}`);
  return element("p", { class: "soft" }, "Route ", element("b", null, name), ` leads ${shares.join(", ")}.`);
}
