// The page: it asks the server once a second while it is seen, and shows what that answers.

import { byId, element, say } from "./dom.js";
import { Looks } from "./figures.js";
import { Models } from "./models.js";
import { Refused, ask, content, key, useKey } from "./server.js";
import { Traffic } from "./traffic.js";
import { Trial } from "./tryit.js";

const EVERY_MS = 1000;
const LIMIT_MS = 15_000;
// Who wants little motion sees the charts move in steps.
const CALM_MS = 5000;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const models = new Models(byId("model-list"));
const traffic = new Traffic();
const trial = new Trial(byId("trial"));
let looks = new Looks();
let known = null; // what /page/models answered
let timer = null;
let paused = false;
let asking = false;
let shut = false; // until a key is given
let drawn_ms = 0;

async function look() {
  clearTimeout(timer);
  if (asking || shut || document.hidden) return;
  asking = true;
  let again_ms = EVERY_MS;
  try {
    if (!known) await learn();
    const figures = await told("page/figures");
    if (known.loaded !== figures.loaded) await learn();
    looks.add(figures);
    answers(figures);
  } catch (error) {
    again_ms = Math.max(EVERY_MS, 1000 * (error.again_s ?? 0));
    fails(error);
  } finally {
    asking = false;
    timer = setTimeout(look, again_ms);
  }
}

/** What the page is told of the server. A network that swallows the question must not keep it from asking again. */
const told = async (path) => content(await ask(path, { signal: AbortSignal.timeout(LIMIT_MS) }), (held) => held.json());

/** Ask which models there are. */
async function learn() {
  known = await told("page/models");
  models.show(known);
  traffic.show(known);
  trial.show(known);
  say(byId("release"), `penstock ${known.penstock}`);
}

function answers({ problems }) {
  byId("gate").hidden = byId("trouble").hidden = true;
  byId("content").hidden = byId("sections").hidden = false;
  byId("forget").hidden = !key();
  byId("links").hidden = key() !== ""; // a link brings no key
  const state = byId("state");
  say(state, problems.length ? "not ready" : "ready");
  state.className = problems.length ? "state bad" : "state good";
  tell(problems);
  if (!paused) draw();
}

/** Say why the server is not ready, where that is another reason than before. */
function tell(problems) {
  const place = byId("problems");
  const lines = problems.map((problem) => element("p", { class: "notice" }, problem));
  if (place.textContent !== lines.map((line) => line.textContent).join("")) place.replaceChildren(...lines);
}

function draw(at_once = false) {
  const now_ms = performance.now();
  if (!known || (calm.matches && !at_once && now_ms - drawn_ms < CALM_MS - EVERY_MS / 2)) return;
  drawn_ms = now_ms;
  models.update(looks, known.bounds_s);
  traffic.update(looks, known.bounds_s);
}

function fails(error) {
  if (!(error instanceof Refused)) throw error;
  if (error.status === 401 || error.status === 403) {
    const given = key() !== "";
    close();
    say(byId("key-fault"), given ? error.message : "");
    byId("key").focus();
    return;
  }
  const trouble = byId("trouble");
  trouble.hidden = false;
  say(trouble, `${error.message} ${known ? "What stands here is from before; it" : "It"} is asked again.`);
  say(byId("state"), "");
}

/** Show nothing of the models, and ask for a key. */
function close() {
  shut = true;
  known = null;
  looks = new Looks();
  models.show({ models: [], held_back: {}, unloaded: [], routes: {} });
  tell([]);
  traffic.show({ models: [] });
  trial.show({ models: [] });
  say(byId("state"), "");
  for (const id of ["content", "sections", "forget", "trouble", "links"]) byId(id).hidden = true;
  byId("gate").hidden = false;
}

byId("gate").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  byId("key").value = "";
  shut = false;
  look();
});
byId("forget").addEventListener("click", () => {
  useKey("");
  close();
  shut = false;
  look();
});
byId("pause").addEventListener("click", ({ currentTarget }) => {
  paused = !paused;
  currentTarget.ariaPressed = String(paused);
  if (!paused) draw(true);
});
byId("watched").addEventListener("change", () => draw(true));
byId("readings").addEventListener("toggle", () => draw(true));
addEventListener("resize", () => draw(true));
document.addEventListener("visibilitychange", look);
// A file that is dropped beside the form must not take the page's place.
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
look();
