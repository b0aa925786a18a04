// The same request as a command line and as a program; a key stands in neither, but the variable that holds it.

import { BASE, key } from "./server.js";

export const VARIABLE = "PENSTOCK_API_KEY";

/** A word as a shell takes it. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A text as Python takes it. */
const literal = (text) => (/"/.test(text) && !/['\\\u0000-\u001f]/.test(text) ? `'${text}'` : JSON.stringify(text));

const address = ({ path }) => new URL(path, BASE).href;

export function curl(request) {
  const key_header = key() ? [`-H "Authorization: Bearer $${VARIABLE}"`] : [];
  const body = request.file ? `--data-binary ${quoted(`@./${request.file}`)}` : `--data-raw ${quoted(request.body)}`;
  const type = `-H ${quoted(`Content-Type: ${request.type}`)}`;
  return [`curl ${quoted(address(request))}`, ...key_header, type, body].join(" \\\n  ");
}

export function python(request) {
  const headers = [`"Content-Type": ${literal(request.type)}`];
  if (key()) headers.push(`"Authorization": "Bearer " + os.environ["${VARIABLE}"]`);
  const body = request.file ? `open(${literal(request.file)}, "rb").read()` : `${literal(request.body)}.encode()`;
  return `import json
${key() ? "import os\n" : ""}import urllib.request

request = urllib.request.Request(
    ${literal(address(request))},
    data=${body},
    headers={${headers.join(", ")}},
)
with urllib.request.urlopen(request) as answer:
    print(json.dumps(json.load(answer), indent=2))`;
}
