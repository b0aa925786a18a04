// Elements are made without markup: whatever a model, a label or an error is called, it becomes a text.

// Marks that turn the direction of the text after them, by which a name can look like another.
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

export const byId = (id) => document.getElementById(id);

/** A text as it may be shown. */
export const shown = (text) => String(text).replace(TURNING, "\ufffd");

/** An element of HTML: `attributes` by name, null and false left out; `content` are elements and texts. */
export const element = (tag, attributes, ...content) => filled(document.createElement(tag), attributes, content);

/** An element of SVG, likewise. */
export const drawn = (tag, attributes, ...content) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, content);

function filled(made, attributes, content) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    made.setAttribute(name, value === true ? "" : shown(value));
  }
  made.append(...content.filter((part) => part !== null).map((part) => (part instanceof Node ? part : shown(part))));
  return made;
}

/** A term and what is said of it, as parts of a list of definitions. */
export const defined = (term, said) => [element("dt", null, term), element("dd", null, said)];

/** Replace a text only where it is another: what did not change is not told anew to whoever listens. */
export function say(node, text) {
  if (node.textContent !== shown(text)) node.textContent = shown(text);
}

/** Choices for a select: pairs of value and text; the one that is chosen stays so while it is there. */
export function offer(select, pairs) {
  const chosen = select.value;
  select.replaceChildren(...pairs.map(([value, text]) => element("option", { value }, text)));
  if (pairs.some(([value]) => value === chosen)) select.value = chosen;
}
