// What a request is made of: a picture, a text, a table row, or tensors. Each form gives a body and its type.

import { element, say } from "./dom.js";
import { bytes } from "./figures.js";

export const NAMES = { image: "Picture", text: "Text", row: "Table row", inputs: "Tensors" };
const PICTURES = "image/png,image/jpeg,image/webp,image/bmp,image/gif";
// A row of more columns without names is written as a list.
const MOST_FIELDS = 64;

/** The form of that name for a model: `node`, and `request()`, which throws an Error where something is missing. */
export function form(name, model) {
  const told = model.forms[name];
  return { image: picture, text, row, inputs: tensors }[name](told, model);
}

const json = (body) => ({ type: "application/json", body });
const hint = (said) => (said ? element("p", { class: "soft" }, said) : null);

function picture(told) {
  let held = null;
  const input = element("input", { type: "file", accept: PICTURES, id: "picture" });
  const preview = element("img", { alt: "", hidden: true });
  const name = element("span", null, "Drop a picture here, paste one, or choose a file");
  const drop = element("label", { class: "drop", for: "picture" }, preview, name, input);
  const node = element("div", null, drop, hint(told.hint));

  function take(file) {
    if (!file) return;
    held = file.name ? file : new File([file], "pasted.png", { type: file.type });
    if (preview.src) URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(held);
    preview.hidden = false;
    say(name, `${held.name}, ${bytes(held.size)}`);
  }
  input.addEventListener("change", () => take(input.files[0]));
  drop.addEventListener("dragover", () => drop.classList.add("over"));
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  // Wherever on the page it is dropped or pasted, for as long as this form is there.
  const given = (event) => {
    drop.classList.remove("over");
    if (node.isConnected) take((event.dataTransfer ?? event.clipboardData).files[0]);
    else for (const kind of ["drop", "paste"]) document.removeEventListener(kind, given);
  };
  for (const kind of ["drop", "paste"]) document.addEventListener(kind, given);
  return {
    node,
    request() {
      if (!held) throw new Error("There is no picture yet: drop one, paste one, or choose a file.");
      const type = held.type.startsWith("image/") ? held.type : "application/octet-stream";
      return { type, body: held, file: held.name };
    },
  };
}

function text(told) {
  const input = element("textarea", { id: "text", rows: 4, spellcheck: "false" });
  input.value = told.example;
  const node = element("div", null, element("label", { for: "text" }, "Text"), input, hint(told.hint));
  return { node, request: () => json(JSON.stringify({ text: input.value })) };
}

function row({ columns }) {
  if (columns.length > MOST_FIELDS && columns[0].name === null) return list(columns);
  const fields = columns.map(field);
  const node = element("div", { class: "fields" }, ...fields.map((one) => one.node));
  return {
    node,
    request() {
      const values = fields.map((one) => one.value());
      if (columns[0].name === null) return json(`{"row": [${values.join(", ")}]}`);
      const named = columns.map(({ name }, place) => `${JSON.stringify(name)}: ${values[place]}`);
      return json(`{"row": {${named.join(", ")}}}`);
    },
  };
}

function list(columns) {
  const input = element("textarea", { id: "row", rows: 6, spellcheck: "false" });
  input.value = columns.map(({ example }) => JSON.stringify(example)).join(", ");
  const label = element("label", { for: "row" }, `${columns.length} values, with commas between them`);
  const node = element("div", null, label, input);
  return { node, request: () => json(`{"row": ${checked(`[${input.value}]`, "The row")}}`) };
}

/** One column's field; `value()` is what it holds, as JSON. */
function field(column, place) {
  const id = `column-${place}`;
  const called = column.name ?? `Value ${place + 1}`;
  const input = widget(column, id);
  input.value = String(column.example);
  const node = element("div", null, element("label", { for: id }, called), input);
  return { node, value: () => written(column, input.value, called) };
}

function widget({ kind, choices, needed }, id) {
  if (kind === "truth" || choices.length) {
    const offered = kind === "truth" ? ["true", "false"] : choices;
    const none = needed ? [] : [element("option", { value: "" }, "(missing)")];
    return element("select", { id }, ...none, ...offered.map((choice) => element("option", { value: choice }, choice)));
  }
  const numeric = kind === "number" || kind === "whole";
  const step = kind === "whole" ? "1" : "any";
  return element("input", { id, type: numeric ? "number" : "text", step, autocomplete: "off" });
}

function written({ kind, needed }, value, called) {
  if (value === "" && kind !== "text") {
    if (needed) throw new Error(`${called} is empty, or no number; it must be one.`);
    return "null";
  }
  if (kind === "whole") {
    if (!/^-?\d+$/.test(value)) throw new Error(`${called} is ${value}; it must be a whole number.`);
    return String(BigInt(value)); // a Number would round a long one
  }
  return kind === "number" ? String(Number(value)) : kind === "truth" ? value : JSON.stringify(value);
}

function tensors(told, { inputs }) {
  const input = element("textarea", { id: "tensors", rows: 8, spellcheck: "false", class: "code" });
  input.value = JSON.stringify(told.example ?? Object.fromEntries(inputs.map(({ name }) => [name, []])));
  const shapes = inputs.map(({ name, datatype, shape }) => `${name}: ${datatype} [${shape.join(", ")}]`).join("; ");
  const label = element("label", { for: "tensors" }, "Inputs as JSON, rows by name");
  return {
    node: element("div", null, label, input, hint(shapes)),
    request: () => json(`{"inputs": ${checked(input.value, "The text")}}`),
  };
}

function checked(written_json, called) {
  try {
    JSON.parse(written_json);
  } catch (error) {
    throw new Error(`${called} is no JSON: ${error.message}.`);
  }
  return written_json.trim();
}
