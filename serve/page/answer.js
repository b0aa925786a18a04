// An answer as people read it: labels with bars, values, a map, or outputs; and where the request's time went.

import { defined, element } from "./dom.js";
import { brief } from "./figures.js";

const MOST_SHOWN = 4000;
const STAGES = [
  ["decode", "reading the request"], ["queue", "waiting for a batch"], ["compute", "computing"],
  ["rest", "the rest in the server"], ["way", "network and browser"],
];

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** The label that stands first, or null of an answer without. */
export function first(answer) {
  const [prediction] = answer.predictions ?? [];
  return prediction ? (prediction.label ?? prediction.labels?.[0]?.label ?? null) : null;
}

/** The answer in a few words. */
export function words(answer) {
  const [prediction] = answer.predictions ?? [];
  if (prediction?.top) return `${prediction.label}, ${percent(prediction.score)}`;
  if (prediction?.labels) {
    return prediction.labels.slice(0, 3).map(({ label, share }) => `${label} ${percent(share)}`).join(", ");
  }
  if (answer.values) return answer.values.flat().slice(0, 8).map(brief).join(", ");
  return `outputs ${Object.keys(answer.outputs).join(", ")}`;
}

/** The whole answer. */
export function answered(answer) {
  return element("div", null, ...(answer.predictions ?? []).map(predicted), ...valued(answer), ...raw(answer));
}

function predicted({ top, labels, map, width, height }) {
  if (top) return bars(top.map(({ label, score }) => [label, score]));
  const alt = `The class of each of ${width} x ${height} pixels`;
  const picture = element("img", { class: "map", alt, src: `data:image/png;base64,${map}` });
  return element("div", null, picture, bars(labels.map(({ label, share }) => [label, share])));
}

function bars(pairs) {
  return element("ol", { class: "bars", role: "list" }, ...pairs.map(([label, share]) => {
    const bar = element("span", { class: "bar", "aria-hidden": "true" }, element("span", null));
    bar.firstElementChild.style.width = `${100 * share}%`;
    const name = element("span", { class: "label" }, label);
    return element("li", null, name, bar, element("span", { class: "share" }, percent(share)));
  }));
}

const valued = ({ values }) => (values ? [element("p", { class: "value" }, values.flat().map(brief).join(", "))] : []);

function raw({ outputs }) {
  if (!outputs) return [];
  const text = Object.entries(outputs).map(([name, held]) => `${name}: ${JSON.stringify(held)}`).join("\n");
  const cut = text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}…` : text;
  return [element("pre", { tabindex: "0", role: "region", "aria-label": "Outputs" }, cut)];
}

/** Where the time went: the server's own milliseconds, and what the way there and back took beside. */
export function times({ timing }, round_ms, id) {
  const { decode_ms, queue_ms, compute_ms, total_ms } = timing;
  const parts = {
    decode: decode_ms, queue: queue_ms, compute: compute_ms,
    rest: Math.max(0, total_ms - decode_ms - queue_ms - compute_ms), way: Math.max(0, round_ms - total_ms),
  };
  const all = Object.values(parts).reduce((total, part) => total + part, 0) || 1;
  const strips = STAGES.map(([name]) => {
    const part = element("span", { class: `t-${name}` });
    part.style.width = `${(100 * parts[name]) / all}%`;
    return part;
  });
  const facts = STAGES.map(([name, said]) => {
    const [term, value] = defined(said, `${parts[name].toFixed(2)} ms`);
    term.prepend(element("span", { class: `swatch t-${name}`, "aria-hidden": "true" }));
    return [term, value];
  });
  const sum = defined("in all", `${round_ms.toFixed(2)} ms`);
  return element(
    "div",
    { class: "times" },
    element("h4", null, "Where the time went"),
    element("div", { class: "strip", "aria-hidden": "true" }, ...strips),
    element("dl", null, ...facts.flat(), ...sum),
    element("p", { class: "soft" }, "Request ", element("code", null, id)),
  );
}
