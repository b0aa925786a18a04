// Asking the server: with the key if there is one, and failures as sentences.

/** Where the server is, also behind a proxy that gives it a path. */
export const BASE = new URL("../", import.meta.url);
const KEY = "penstock key";
let held = sessionStorage.getItem(KEY) ?? "";

export const key = () => held;

/** Use a key for as long as this tab is open; an empty one is none. */
export function useKey(text) {
  held = text.trim();
  if (held) sessionStorage.setItem(KEY, held);
  else sessionStorage.removeItem(KEY);
}

/** What the server did not answer: `status` is 0 where nobody did; `again_s` is when it may be asked again. */
export class Refused extends Error {
  constructor(message, status, again_s = 0) {
    super(message);
    Object.assign(this, { status, again_s });
  }
}

/** A request to `path`, and the answer if it is one. Throws Refused. */
export async function ask(path, { headers = {}, ...how } = {}) {
  const sent = held ? { ...headers, Authorization: `Bearer ${held}` } : headers;
  let answer;
  try {
    answer = await fetch(new URL(path, BASE), { ...how, headers: sent, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const why = /[^\x20-\x7e]/.test(held) ? "The key has a character that no key has." : "The server does not answer.";
    throw new Refused(why, 0);
  }
  if (answer.ok) return answer;
  throw new Refused(await reason(answer), answer.status, Number(answer.headers.get("Retry-After")) || 0);
}

/** What `read` makes of an answer. Throws Refused where it breaks off, or cannot be read. */
export async function content(answer, read) {
  try {
    return await read(answer);
  } catch {
    throw new Refused("The answer broke off, or is not this server's.", 0);
  }
}

async function reason(answer) {
  try {
    const { error } = await answer.json();
    if (typeof error === "string") return sentence(error);
  } catch {
    // It is not the server's own: a proxy's, perhaps.
  }
  return `The answer is ${answer.status} ${answer.statusText}.`;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".");
