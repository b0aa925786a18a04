// Trying a model: a form made of its signature, its answer, and another model's beside it.

import { answered, first, times, words } from "./answer.js";
import { VARIABLE, curl, python } from "./commands.js";
import { element, offer, say } from "./dom.js";
import { brief } from "./figures.js";
import { NAMES, form } from "./forms.js";
import { Refused, ask, content, key } from "./server.js";
import { decode, difference, exact } from "./tensors.js";

const TOP = 5;
const MARK = [...crypto.getRandomValues(new Uint8Array(4))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
let number = 0;

export class Trial {
  constructor(place) {
    this.models = [];
    this.model = element("select", { id: "model" });
    this.other = element("select", { id: "other" });
    this.kinds = element("fieldset", { class: "kinds" }, element("legend", null, "Send it"));
    this.input = element("div", { class: "input" });
    this.button = element("button", { type: "submit", class: "main" }, "Ask the model");
    this.status = element("p", { role: "status", class: "outcome" });
    this.results = element("div", { class: "results" });
    const choice = (label, select) => element("div", null, element("label", { for: select.id }, label), select);
    const parts = [choice("Model", this.model), this.kinds, this.input, choice("Beside it", this.other), this.button];
    const asked = element("form", { class: "panel asked", "aria-label": "The request" }, ...parts);
    const named = { class: "panel", role: "region", "aria-label": "The answer" };
    const region = element("div", named, this.status, this.results);
    place.append(asked, region);
    asked.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.model.addEventListener("change", () => this.choose());
    this.idle();
  }

  idle() {
    this.say("The answer will stand here.");
  }

  /** Say something in place of an answer. */
  say(text, bad = false) {
    this.results.replaceChildren();
    this.status.classList.toggle("bad", bad);
    say(this.status, text);
  }

  show({ models }) {
    const before = this.of(this.model.value);
    this.models = models;
    offer(this.model, models.map(({ name }) => [name, name]));
    if (!models.length) this.idle();
    const now = this.of(this.model.value);
    // A form that somebody is filling in stays as long as it suits the model.
    if (JSON.stringify(before?.forms) !== JSON.stringify(now?.forms)) this.choose();
    else this.offerOthers();
  }

  of(name) {
    return this.models.find((model) => model.name === name);
  }

  /** Make the form for the model that is chosen. */
  choose() {
    const model = this.of(this.model.value);
    const names = Object.keys(model?.forms ?? {});
    const kept = names.includes(this.kind) ? this.kind : names[0];
    const radios = names.map((name) => {
      const radio = element("input", { type: "radio", name: "kind", value: name, checked: name === kept });
      radio.addEventListener("change", () => this.turn(name));
      return element("label", null, radio, ` ${NAMES[name]}`);
    });
    this.kinds.replaceChildren(this.kinds.firstChild, ...radios);
    this.kinds.hidden = names.length < 2;
    this.turn(kept);
  }

  turn(kind) {
    this.kind = kind;
    const model = this.of(this.model.value);
    this.form = model ? form(kind, model) : null;
    this.input.replaceChildren(...(this.form ? [this.form.node] : []));
    this.button.disabled = !model;
    this.offerOthers();
  }

  offerOthers() {
    const model = this.of(this.model.value);
    const like = model?.forms[this.kind]?.like;
    const others = this.models.filter((other) => other !== model && other.forms[this.kind]?.like === like);
    const none = others.length ? "no other model" : "there is none like it";
    offer(this.other, [["", none], ...others.map(({ name }) => [name, name])]);
    this.other.disabled = !others.length;
  }

  /** Ask the models that are chosen, one after the other, and show what they answer. */
  async send() {
    let made;
    try {
      made = this.form.request();
    } catch (error) {
      this.say(error.message, true);
      return;
    }
    // Models may come and go while they are asked.
    const models = [this.model.value, this.other.value].filter(Boolean).map((name) => this.of(name));
    this.button.disabled = true;
    this.status.classList.remove("bad");
    say(this.status, "Asking …");
    try {
      const told = [];
      for (const model of models) told.push(await asked(model, made));
      const between = told.length > 1 ? await compared(told, made) : null;
      this.tell(told, between);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.say(error.message, true);
    } finally {
      this.button.disabled = !this.form;
    }
  }

  tell(told, between) {
    const said = told.map(({ answer, round_ms }) => `${answer.model}: ${words(answer)}, in ${round_ms.toFixed(1)}\u00a0ms.`);
    const lines = said.map((line) => element("span", null, `${line} `));
    this.status.replaceChildren(...lines, ...(between ? [element("span", { class: "between" }, between)] : []));
    const answers = told.map(({ answer, round_ms, id }) => {
      const head = element("h3", null, answer.model, element("small", { class: "soft" }, ` version ${answer.version}`));
      return element("article", { class: "answer" }, head, answered(answer), times(answer, round_ms, id));
    });
    const side_by_side = element("div", { class: `answers of${answers.length}` }, ...answers);
    this.results.replaceChildren(side_by_side, commands(told[0].request));
  }
}

const path = (model) => {
  const labels = ["classification", "multilabel"].includes(model.task) ? `?top_k=${TOP}` : "";
  return `predict/${encodeURIComponent(model.name)}${labels}`;
};

/** One model's answer, with the milliseconds that it took to come. */
async function asked(model, made) {
  const request = { ...made, path: path(model) };
  const id = `page-${MARK}-${(number += 1)}`;
  const began = performance.now();
  const headers = { "Content-Type": made.type, "X-Request-Id": id };
  const sent = await ask(request.path, { method: "POST", headers, body: made.body });
  const answer = await content(sent, async (held) => exact(await held.text()));
  return { request, answer, id, round_ms: performance.now() - began };
}

/** How far two models' answers are from each other, in a sentence: by all of their outputs, in full precision. */
async function compared(told, made) {
  const whole = [];
  for (const { answer } of told) {
    const headers = { "Content-Type": made.type, Accept: "application/octet-stream" };
    const whence = `predict/${encodeURIComponent(answer.model)}`;
    const binary = await ask(whence, { method: "POST", headers, body: made.body });
    const length = Number(binary.headers.get("Inference-Header-Content-Length"));
    whole.push(decode(await content(binary, (held) => held.arrayBuffer()), length));
  }
  const [one, other] = told.map(({ answer }) => first(answer));
  const label = one === null ? "" : one === other ? "The top label is the same. " : "The top labels differ. ";
  const worst = difference(...whole);
  if (worst === null) return `${label}Their outputs are of different shapes.`;
  const most = `of values up to ${brief(worst.size)}`;
  return `${label}Largest difference: ${brief(worst.largest)} in output ${worst.name}, ${most}.`;
}

function commands(request) {
  const notes = [];
  if (request.file) notes.push([`Run it where ${request.file} lies.`]);
  if (key()) notes.push(["The key is read from the variable ", element("code", null, VARIABLE), "."]);
  return element(
    "section",
    { class: "commands", "aria-label": "The same request" },
    element("h3", null, "The same request"),
    ...notes.map((note) => element("p", { class: "soft" }, ...note)),
    listing("curl", curl(request)),
    listing("Python", python(request)),
  );
}

function listing(name, text) {
  const code = element("pre", { tabindex: "0", role: "region", "aria-label": name }, text);
  const copy = element("button", { type: "button", class: "quiet", "aria-label": `Copy ${name}` }, "Copy");
  const said = element("span", { role: "status", class: "soft" });
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      say(said, "Copied.");
    } catch {
      getSelection().selectAllChildren(code);
      say(said, "Selected: copy it by Ctrl+C.");
    }
  });
  return element("div", { class: "listing" }, element("h4", null, name), copy, said, code);
}
