// From what the server has counted so far, asked again and again, to what happened in between. No element is touched.

/** Seconds that the charts look back. */
export const SPAN_S = 120;
// Percentiles are of so many seconds: one alone has few requests.
const SMOOTH_S = 5;
// A longer way between two looks is a gap: nobody looked.
const GAP_S = 5;

/** What was counted after `before`, place by place; a counter that is smaller than it was has begun anew. */
export function since(after, before) {
  return after.map((count, place) => (count >= (before[place] ?? 0) ? count - (before[place] ?? 0) : count));
}

/** The same of counts by name. */
export function sinceNamed(after, before) {
  const names = Object.keys(after);
  const counts = since(names.map((name) => after[name]), names.map((name) => before[name] ?? 0));
  return Object.fromEntries(names.map((name, place) => [name, counts[place]]));
}

/** The value below which a share of all lies, between the bounds of its bucket; null of none. */
export function percentile(counts, bounds, share) {
  const wanted = share * sum(counts);
  let below = 0;
  for (const [place, count] of counts.entries()) {
    if (count && below + count >= wanted) {
      const low = place ? bounds[place - 1] : 0;
      const high = bounds[Math.min(place, bounds.length - 1)];
      return low + ((high - low) * (wanted - below)) / count;
    }
    below += count;
  }
  return null;
}

export const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

/** Lists of counts as one, place by place; one that nobody has counted in is empty. */
function added(lists) {
  const longest = lists.reduce((most, list) => (list.length > most.length ? list : most), []);
  return longest.map((_, place) => sum(lists.map((list) => list[place] ?? 0)));
}

/** The looks of the last minutes: each what `/page/figures` answered. */
export class Looks {
  constructor() {
    this.held = [];
    this.known = new Map(); // points that were worked out, by name and look
  }

  add(look) {
    const last = this.held.at(-1);
    if (last && (last.process !== look.process || last.now_s > look.now_s)) this.held = [];
    this.held.push(look);
    while (look.now_s - this.held[0].now_s > SPAN_S + SMOOTH_S + 1) this.held.shift();
  }

  /** A point for each look but the first, of one model or, for "", of all of them. */
  points(name, bounds) {
    return this.held.slice(1).map((_, place) => this.point(place + 1, name, bounds));
  }

  /** The latest of them; one without figures while there is none. */
  latest(name, bounds) {
    return this.held.length > 1 ? this.point(this.held.length - 1, name, bounds) : {};
  }

  point(place, name, bounds) {
    const look = this.held[place];
    if (!this.known.has(name)) this.known.set(name, new WeakMap());
    const known = this.known.get(name);
    if (!known.has(look)) known.set(look, point(look, this.held[place - 1], this.smooth(place), name, bounds));
    return known.get(look);
  }

  /** The look that percentiles are counted from. */
  smooth(place) {
    let first = place - 1;
    while (first > 0 && this.held[place].now_s - this.held[first - 1].now_s <= SMOOTH_S + 0.5) first -= 1;
    return this.held[first];
  }

  /** How many batches there were of each size within the last minutes. */
  sizes(name) {
    if (this.held.length < 2) return new Map();
    const found = new Map();
    for (const [after, before] of pairs(this.held.at(-1), this.held[0], name)) {
      for (const [size, count] of Object.entries(sinceNamed(after.sizes, before.sizes))) {
        if (count) found.set(Number(size), (found.get(Number(size)) ?? 0) + count);
      }
    }
    return new Map([...found].sort(([one], [other]) => one - other));
  }
}

/** What is known of each model that is meant, after and before; one that came in between has counted nothing before. */
function pairs(after, before, name) {
  const none = { codes: {}, seconds: [], queue: [], compute: [], sizes: {} };
  const names = name ? [name] : Object.keys(after.models);
  // A model may be called as what every object has: constructor.
  const of = ({ models }, each) => (Object.hasOwn(models, each) ? models[each] : null);
  return names.filter((each) => of(after, each)).map((each) => [of(after, each), of(before, each) ?? none]);
}

function point(after, before, smooth, name, bounds) {
  const seconds = after.now_s - before.now_s;
  const found = { at_s: after.now_s, gap: seconds > GAP_S || seconds <= 0 };
  const last = pairs(after, before, name);
  found.waiting = sum(last.map(([model]) => model.waiting));
  if (found.gap) return found;
  const codes = last.map(([now, then]) => sinceNamed(now.codes, then.codes));
  if (!name) codes.push(sinceNamed(after.unknown, before.unknown));
  const ended = codes.flatMap(Object.entries);
  found.answered = sum(ended.filter(([code]) => code < 400).map(([, count]) => count)) / seconds;
  found.failed = sum(ended.filter(([code]) => code >= 400).map(([, count]) => count)) / seconds;
  const named = last.flatMap(([now, then]) => Object.entries(sinceNamed(now.sizes, then.sizes)));
  const sizes = named.filter(([, count]) => count);
  const batches = sum(sizes.map(([, count]) => count));
  found.rows = batches ? sum(sizes.map(([size, count]) => size * count)) / batches : null;
  found.largest = batches ? Math.max(...sizes.map(([size]) => Number(size))) : null;
  const around = pairs(after, smooth, name);
  const counted = (kind) => added(around.map(([now, then]) => since(now[kind], then[kind])));
  const latency = counted("seconds");
  for (const share of [50, 95, 99]) found[`p${share}`] = milliseconds(latency, bounds, share / 100);
  found.queue = milliseconds(counted("queue"), bounds, 0.5);
  found.compute = milliseconds(counted("compute"), bounds, 0.5);
  return found;
}

function milliseconds(counts, bounds, share) {
  const seconds = percentile(counts, bounds, share);
  return seconds === null ? null : 1000 * seconds;
}

/** A number in few digits, with its thousands apart. */
export function brief(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  if (number && Math.abs(number) < 0.001) return number.toExponential(1);
  const before = Math.max(0, Math.floor(Math.log10(Math.abs(number))));
  return number.toLocaleString("en", { maximumFractionDigits: Math.max(0, (Math.abs(number) < 1 ? 3 : 2) - before) });
}

/** Bytes as people read them. */
export function bytes(number) {
  if (!number) return "–";
  const power = Math.min(Math.floor(Math.log2(number) / 10), 4);
  return `${brief(number / 2 ** (10 * power))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
