// Sessions of VS Code's client for tests of debug adapters: node vscode_session.js PORT FOLDER
"use strict";
const assert = require("assert");
const path = require("path");
const { DebugClient } = require("@vscode/debugadapter-testsupport");

const [port, folder] = [Number(process.argv[2]), process.argv[3]];
const program = path.join(folder, "run.py");
const kernel = path.join(folder, "scale.cu");
const [call, statement] = [15, 12];

async function session(steps) {
  const client = new DebugClient("", "", "cudakit");
  await client.start(port);
  await steps(client);
  await client.stop();
}

async function main() {
  await session(async (client) => {
    await assert.rejects(client.customRequest("illegal_request"));
    await assert.rejects(client.initializeRequest({ adapterID: "cudakit", pathFormat: "url" }));
    const response = await client.initializeRequest();
    assert.strictEqual(response.body.supportsConfigurationDoneRequest, true);
  });
  await session(async (client) => {
    const launch = { program, cwd: folder };
    await client.hitBreakpoint(launch, { path: kernel, line: call, verified: false }, { path: kernel, line: call }, {});
    const { body } = await client.threadsRequest();
    assert.match(body.threads[0].name, /^block \(0,0,0\) thread \(0,0,0\)/);
  });
  await session(async (client) => {
    await Promise.all([
      client.configurationSequence(),
      client.launch({ program, cwd: folder, stopOnEntry: true }),
      client.assertStoppedLocation("entry", { path: kernel, line: statement - 2 }),
    ]);
    const [{ id }] = (await client.threadsRequest()).body.threads;
    await Promise.all([
      client.nextRequest({ threadId: id }),
      client.assertStoppedLocation("step", { path: kernel, line: statement }),
    ]);
    await Promise.all([
      client.continueRequest({ threadId: id }),
      client.assertOutput("stdout", "results [  3. 107.]"),
      client.waitForEvent("exited"),
      client.waitForEvent("terminated"),
    ]);
  });
  console.log("all sessions passed");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
