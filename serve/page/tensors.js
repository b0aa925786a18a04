// Tensors in the Open Inference Protocol's binary form, and how far two sets of them are from each other.

const READERS = {
  BOOL: [1, (view, at) => view.getUint8(at)],
  UINT8: [1, (view, at) => view.getUint8(at)],
  UINT16: [2, (view, at) => view.getUint16(at, true)],
  UINT32: [4, (view, at) => view.getUint32(at, true)],
  UINT64: [8, (view, at) => Number(view.getBigUint64(at, true))],
  INT8: [1, (view, at) => view.getInt8(at)],
  INT16: [2, (view, at) => view.getInt16(at, true)],
  INT32: [4, (view, at) => view.getInt32(at, true)],
  INT64: [8, (view, at) => Number(view.getBigInt64(at, true))],
  FP16: [2, (view, at) => half(view.getUint16(at, true))],
  BF16: [2, (view, at) => upper(view.getUint16(at, true))],
  FP32: [4, (view, at) => view.getFloat32(at, true)],
  FP64: [8, (view, at) => view.getFloat64(at, true)],
};

function half(bits) {
  const sign = bits >> 15 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

function upper(bits) {
  const view = new DataView(new ArrayBuffer(4));
  view.setUint32(0, bits << 16 >>> 0);
  return view.getFloat32(0);
}

/** An answer whose outputs' whole numbers are as they were written, which a Number would round beyond 2 ** 53. */
export function exact(text) {
  const answer = JSON.parse(text);
  if (!answer.outputs || !JSON.rawJSON || !/[[,]-?\d{16,}[\],]/.test(text)) return answer;
  const whole = (_, value, { source } = {}) => (/^-?\d{16,}$/.test(source) ? JSON.rawJSON(source) : value);
  return { ...answer, outputs: JSON.parse(text, whole).outputs };
}

/** Outputs by name, each with its shape and its values; of texts the values are their bytes. */
export function decode(buffer, json_length) {
  const { outputs } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 0, json_length)));
  let at = json_length;
  return new Map(outputs.map(({ name, datatype, shape, parameters }) => {
    const size = parameters.binary_data_size;
    const view = new DataView(buffer, at, size);
    at += size;
    const [width, read] = READERS[datatype] ?? [1, (held, place) => held.getUint8(place)];
    return [name, { shape, values: Array.from({ length: size / width }, (_, place) => read(view, place * width)) }];
  }));
}

/** The output with the largest absolute difference, that, and the largest value; null where shapes are not alike. */
export function difference(one, other) {
  let worst = { name: "", largest: 0, size: 0 };
  for (const [name, { shape, values }] of one) {
    const held = other.get(name);
    if (!held || String(held.shape) !== String(shape) || held.values.length !== values.length) return null;
    let [largest, size] = [0, 0];
    values.forEach((value, place) => {
      largest = Math.max(largest, Math.abs(value - held.values[place]));
      size = Math.max(size, Math.abs(value));
    });
    if (!worst.name || largest > worst.largest) worst = { name, largest, size };
  }
  return worst;
}
