// Runs SQL queries on a trace with the browser build of Perfetto's trace processor.
//
//     node query.js FOLDER TRACE < queries.json
//
// FOLDER has two files of Perfetto's UI: engine_bundle.js, a worker that loads the trace processor and passes messages to
// it, and trace_processor.wasm. Reads a JSON list of queries; writes a JSON list of tables, which are lists of rows.
// Messages are protobuf; the numbers of their fields are in protos/perfetto/trace_processor/trace_processor.proto of
// Perfetto's sources.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const { exit } = process;
const [folder, trace] = process.argv.slice(2);
const queries = JSON.parse(fs.readFileSync(0, "utf8"));

const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorMethod
const text = new TextDecoder();

// Protobuf, as far as these messages need it -------------------------------------------------------------------------

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) + 128);
  return Buffer.from([...bytes, value]);
}
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint(field * 8 + 2), varint(value.length), value]);

function* varints(data) {
  for (let at = 0; at < data.length; ) {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = data[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) break;
    }
    yield Number(BigInt.asIntN(64, value));
  }
}

// {field: [values]}: numbers of varints, the bytes of everything else.
function fields(data) {
  const found = {};
  let at = 0;
  const next = () => {
    const start = at;
    while (data[at++] > 127);
    return [...varints(data.subarray(start, at))][0];
  };
  while (at < data.length) {
    const key = next();
    let value;
    if (key % 8 === 0) value = next();
    else {
      const size = key % 8 === 2 ? next() : key % 8 === 1 ? 8 : 4;
      value = data.subarray(at, (at += size));
    }
    (found[key >> 3] ??= []).push(value);
  }
  return found;
}

function rows(batches, names) {
  const values = [];
  for (const batch of batches.map(fields)) {
    const all = (field) => Buffer.concat(batch[field] ?? []);
    const integers = varints(all(2));
    const doubles = all(3);
    const strings = text.decode(all(5)).split("\0");
    let double = 0, string = 0;
    for (const kind of varints(all(1))) {
      if (kind === 1) values.push(null);
      else if (kind === 2) values.push(integers.next().value);
      else if (kind === 3) values.push(doubles.readDoubleLE(8 * double++));
      else if (kind === 4) values.push(strings[string++]);
      else throw new Error(`a cell of type ${kind}: select no blobs`);
    }
  }
  const table = [];
  while (values.length) table.push(Object.fromEntries(values.splice(0, names.length).map((value, i) => [names[i], value])));
  return table;
}

// The worker ---------------------------------------------------------------------------------------------------------

const tables = [];
let names = [], table = [], failure;

function answer(message) {
  const result = fields(message[203]?.[0] ?? []);
  const of = (field, error) => fields(message[field]?.[0] ?? [])[error];
  failure ??= message[5] ?? of(201, 2) ?? of(212, 1) ?? result[2];
  names.push(...(result[1] ?? []).map((name) => text.decode(name)));
  const batches = result[3] ?? [];
  table.push(...rows(batches, names));
  if (batches.some((batch) => fields(batch)[6])) {
    tables.push(table);
    [names, table] = [[], []];
  }
}

const port = { postMessage: (data) => fields(data)[1].map(fields).forEach(answer) };

// What the worker expects of a browser. It loads the *.wasm file synchronously.
class XMLHttpRequest {
  open(method, name) {
    this.response = new Uint8Array(fs.readFileSync(path.join(folder, path.basename(name)))).buffer;
  }
  send() {}
}
const browser = { XMLHttpRequest, self: globalThis, WorkerGlobalScope: Object, location: { href: "" } };
Object.assign(globalThis, browser, { process: undefined });
console.log = console.warn = () => {};

let sequence = 0;
function send(method, ...parts) {
  const message = Buffer.concat([number(1, ++sequence), number(2, method), ...parts]);
  port.onmessage({ data: new Uint8Array(bytes(1, message)) });
  if (failure) throw new Error(text.decode(failure[0]));
}

function run() {
  send(APPEND, bytes(101, fs.readFileSync(trace)));
  send(FINALIZE);
  for (const query of queries) send(QUERY, bytes(103, bytes(1, Buffer.from(query))));
  fs.writeSync(1, JSON.stringify(tables));
}

function attempt(action) {
  try {
    action();
  } catch (error) {
    fs.writeSync(2, `${error.message}\n`); // without the line of the bundle, which is 150 KB long
    exit(1);
  }
}

attempt(() => {
  vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
  globalThis.onmessage({ data: port });
});
setImmediate(() => attempt(run)); // after the worker's promises
