// The status page in a real browser, over three real servers and a job of four nodes that reads.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { FILES, PICTURES, Scene, pause, soon } from "./scene.mjs";

// The packages lie where the Makefile installs them.
const packages = createRequire(join(process.env.DIESEL_WEB, "packages.js"));
const { chromium } = packages("playwright-core");

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const NODES = 4;
const scene = new Scene();
let servers;
let browser;
let job;

before(async () => {
  const meta = await scene.redis();
  const flags = ["--meta", meta, "--store", `file://${scene.path("chunks")}`];
  servers = [];
  for (const name of ["a", "b", "c"]) servers.push(await scene.server(name, flags));
  scene.address = servers[0].grpc;
  scene.run(scene.address, 0, "put", scene.fill(), "dl://pets");
  for (let node = 0; node < NODES; node += 1) {
    const of = (...words) => scene.dlcmd(scene.address, node, "--task", "train", ...words);
    const [program, start, options] = of("agent", "start", "dl://pets", "--memory", "64MiB");
    execFileSync(program, start, { ...options, stdio: "pipe" });
    const [, words] = of("shuffle", "dl://pets", "--read", "--seed", "1", "--group-size", "2",
      "--world", `${NODES}`, "--rank", `${node}`, "--epoch");
    const loop = 'for epoch in $(seq 9999); do "$@" "$epoch" > /dev/null || exit; sleep 0.3; done';
    scene.start(`reader${node}`, "sh", ["-c", loop, "reader", program, ...words], { env: options.env });
  }
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: FLAGS });
  job = await soon("all nodes read", async () => {
    const [found] = (await status()).jobs;
    return found?.members === NODES && found.rates.files > 0 && found;
  });
});

after(async () => {
  await browser?.close();
  scene.end();
});

const status = async (server = servers[1], path = "status") =>
  (await fetch(`http://${server.http}/api/v1/${path}`)).json();

// A tab that notes errors, foreign addresses and scripts that ran.
async function open(path = "", options = {}, base = `http://${servers[1].http}`) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  const page = await context.newPage();
  page.problems = [];
  page.received = 0;
  page.on("console", (message) => message.type() === "error" && page.problems.push(message.text()));
  page.on("pageerror", (error) => page.problems.push(`${error}`));
  page.on("dialog", (dialog) => page.problems.push(`dialog ${dialog.message()}`));
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(`${base}/`) && !url.startsWith(`blob:${base}/`)) page.problems.push(`asked ${url}`);
  });
  page.on("response", async (response) => {
    page.received += (await response.body().catch(() => "")).length + 400;
  });
  await page.goto(`${base}/${path}`);
  return page;
}

async function close(page) {
  assert.equal(await page.evaluate(() => typeof ran), "undefined", "a script of a dataset ran");
  assert.deepEqual(page.problems, []);
  await page.context().close();
}

const text = (page, selector) => page.locator(selector).first().innerText();

// Keeps a picture for the documentation.
const keep = async (page, name) => {
  if (process.env.DIESEL_FIGURES) await page.screenshot({ path: join(process.env.DIESEL_FIGURES, name) });
};

test("the files of libraries are what their packages have", () => {
  const vendor = join(dirname(fileURLToPath(import.meta.url)), "../../server/web/vendor");
  const from = join(process.env.DIESEL_WEB, "node_modules");
  for (const [mine, theirs] of [["preact.js", "htm/preact/standalone.module.js"], ["uplot.js", "uplot/dist/uPlot.iife.min.js"],
    ["uplot.css", "uplot/dist/uPlot.min.css"], ["LICENSE.htm", "htm/LICENSE"], ["LICENSE.uplot", "uplot/LICENSE"]]) {
    assert.deepEqual(readFileSync(join(vendor, mine)), readFileSync(join(from, theirs)), mine);
  }
});

test("the first view comes at once and small, and asks nobody else", async () => {
  const times = [];
  for (let round = 0; round < 3; round += 1) {
    const page = await open();
    await page.waitForSelector("td a[href^='#/jobs/']");
    times.push(await page.evaluate(() => performance.now()));
    assert.ok(page.received <= 120_000, `${page.received} bytes`);
    await close(page);
  }
  console.log(`first view: ${Math.round(Math.min(...times))} ms`);
  assert.ok(Math.min(...times) < 1000, `${times} ms`);
});

test("answers forbid what a page needs not", async () => {
  const root = await fetch(`http://${servers[0].http}/`);
  assert.match(root.headers.get("content-security-policy"), /default-src 'none'; script-src 'self'/);
  assert.equal(root.headers.get("x-content-type-options"), "nosniff");
  const tag = root.headers.get("etag");
  assert.equal((await fetch(root.url, { headers: { "if-none-match": tag } })).status, 304);
  const file = await fetch(`http://${servers[0].http}/api/v1/datasets/pets/file?path=hostile%2Frun%2Esvg`);
  assert.match(file.headers.get("content-type"), /^text\/plain/);
  assert.match(file.headers.get("content-security-policy"), /sandbox/);
  for (const [path, code] of [["datasets/none", 404], ["datasets/pets/file?path=none", 404], ["datasets/pets/file?path=train", 400],
    ["datasets/pets/file?path=..", 400], ["datasets/pets/file", 400], ["tasks/none", 404], ["status?since=x", 400]]) {
    assert.equal((await fetch(`http://${servers[0].http}/api/v1/${path}`)).status, code, path);
  }
  const foreign = await new Promise((done) => {
    import("node:http").then(({ get }) =>
      get(`http://${servers[0].http}/api/v1/status`, { headers: { host: "evil.example" } }, (answer) => done(answer.statusCode)));
  });
  assert.equal(foreign, 403);
});

test("numbers on the screen are those of the agents, and plots grow", async () => {
  const page = await open(`#/jobs/${job.id}`);
  await page.waitForSelector("h1");
  const points = () => page.evaluate(() => document.querySelectorAll(".u-wrap canvas").length);
  assert.equal(await points(), 4);
  const hits = () => {
    const told = [...Array(NODES).keys()].map((node) => scene.run(scene.address, node, "--json", "--task", "train", "agent", "status"));
    return told.reduce((sum, one) => sum + JSON.parse(one).hits, 0);
  };
  const first = hits();
  // The agents read on: the screen is between what they say before and after.
  await pause(7000);
  const shown = await page.evaluate(async (id) => (await (await fetch(`/api/v1/tasks/${id}`)).json()).jobs[0].counters.hits, job.id);
  assert.ok(shown >= first && shown <= hits(), `${first} ${shown} ${hits()}`);
  assert.match(await text(page, "main"), /workers wait[\s\S]*files[\s\S]*epoch/);
  assert.equal(await page.locator("main > .scroll tr:has(td)").count(), NODES);
  await keep(page, "status-job.png");
  await close(page);
});

test("a killed server is seen, the page heals, and plots go on", async () => {
  const page = await open();
  await page.waitForSelector("td.good");
  const { child, name, args, grpc, http } = servers[2];
  child.kill("SIGKILL");
  await page.waitForSelector("td.bad", { timeout: 20_000 });
  assert.match(await text(page, "td.bad"), /silent/);
  servers[2] = await scene.server(name, args, grpc, http);
  await page.waitForFunction(() => document.querySelectorAll("td.good").length === 3, null, { timeout: 20_000 });
  // The own server of the page.
  const own = servers[1];
  own.child.kill("SIGKILL");
  await page.waitForSelector("[role=alert]", { timeout: 20_000 });
  servers[1] = await scene.server(own.name, own.args, own.grpc, own.http);
  await page.waitForFunction(() => document.querySelectorAll("td.good").length === 3, null, { timeout: 30_000 });
  await page.waitForSelector("[role=alert]", { state: "detached" });
  page.problems = page.problems.filter((problem) => !problem.includes("ERR_"));
  await keep(page, "status-overview.png");
  await close(page);
});

test("nothing of a dataset runs, and names are only names", async () => {
  const page = await open("#/datasets/pets/folder/hostile");
  await page.waitForSelector("td a[href*='hostile']");
  const links = page.locator("td a[href*='/file/']");
  const count = await links.count();
  assert.equal(count, 4);
  const addresses = await links.evaluateAll((all) => all.map((one) => one.getAttribute("href")));
  for (const address of addresses) {
    await page.evaluate((hash) => { location.hash = hash; }, address);
    await page.waitForSelector("pre");
    await pause(200);
  }
  await close(page);
  // Opened by its own address, a file is text.
  const raw = await open("api/v1/datasets/pets/file?path=hostile%2Frun%2Ehtml");
  assert.match(await raw.evaluate(() => document.body.innerText), /<script>/);
  await close(raw);
});

test("folders have pages, and pictures their size", async () => {
  const page = await open("#/datasets/pets");
  await page.waitForSelector("td a[href*='folder/train']");
  assert.match(await text(page, ".tiles"), /2\.1 k/);
  await page.click("a[href*='folder/train']");
  await page.waitForSelector(".pictures img");
  await keep(page, "status-pictures.png");
  assert.equal(await page.locator(".pictures a").count(), 100);
  await page.click("text=more");
  await page.waitForFunction((all) => document.querySelectorAll(".pictures a").length === all, PICTURES);
  await page.click(".pictures a");
  await page.waitForSelector("img.whole");
  await page.waitForSelector("text=37 × 21 pixels");
  await close(page);
});

test("a phone needs no sideways scroll, and dark is dark", async () => {
  for (const place of ["", `#/jobs/${job.id}`, "#/datasets/pets", "#/datasets/pets/file/hostile%2Frun%2Esvg"]) {
    const page = await open(place, { viewport: { width: 390, height: 844 }, colorScheme: "dark" });
    await page.waitForSelector(place ? "h1" : "table");
    await pause(500);
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, place);
    const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.ok(back.match(/\d+/g).every((part) => Number(part) < 64), back);
    await close(page);
  }
});

test("the keyboard alone goes everywhere", async () => {
  const page = await open();
  await page.waitForSelector("td a[href^='#/jobs/']");
  const reach = async (prefix) => {
    for (let step = 0; step < 60; step += 1) {
      await page.keyboard.press("Tab");
      const at = await page.evaluate(() => document.activeElement.getAttribute("href") || document.activeElement.innerText);
      if (at?.startsWith(prefix)) return page.keyboard.press("Enter");
    }
    throw new Error(`no way to ${prefix}`);
  };
  await reach("#/jobs/");
  await page.waitForSelector("h1");
  await reach("1 h");
  await page.waitForSelector("button[aria-pressed=true]:has-text('1 h')");
  await reach("#/datasets/pets");
  await page.waitForSelector("text=dl://pets");
  await close(page);
});

test("with users, a page shows what the roles allow, over TLS too", async () => {
  const file = (name) => scene.path(name);
  execFileSync("openssl", ["req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "1", "-subj", "/CN=localhost",
    "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", file("key.pem"), "-out", file("cert.pem")], { stdio: "pipe" });
  const user = (name, role) =>
    JSON.parse(scene.run("", 9, "--json", "user", "--users", file("users"), "add", name, "--role", role).trim()).key;
  const keys = { ann: user("ann", "admin:*"), bob: user("bob", "read:cars") };
  const closed = await scene.server("d", ["--users", file("users"), "--tls-cert", file("cert.pem"), "--tls-key", file("key.pem"), "--meta", "memory:", "--store", `file://${scene.path("closed")}`]);
  for (const name of ["cars", "pets"]) {
    const args = ["--user", "ann", "--key-file", file("ann.key"), "--ca", file("cert.pem"), "put", scene.path("src", "train"), `dl://${name}`];
    execFileSync("sh", ["-c", 'umask 077; printf %s "$1" > "$2"', "sh", keys.ann, file("ann.key")]);
    scene.run(`https://${closed.grpc}`, 9, ...args);
  }
  const secret = (await open("", { ignoreHTTPSErrors: true }, `https://${closed.http}`));
  await secret.waitForSelector("table");
  const names = async () => (await text(secret, "#datasets ~ .names, main")) || "";
  assert.ok(!(await secret.content()).includes("#/datasets/cars"), "no name without a key");
  const signIn = async (name, key) => {
    if (!(await secret.locator("form").count())) await secret.click("button:has-text('sign in')");
    await secret.fill("input[name=user]", name);
    await secret.fill("input[name=key]", key);
    await secret.keyboard.press("Enter");
  };
  await signIn("bob", "wrong");
  await secret.waitForSelector("text=the user or the key is wrong");
  secret.problems = secret.problems.filter((problem) => !problem.includes("401"));
  await signIn("bob", keys.bob);
  await secret.waitForSelector("a[href='#/datasets/cars']");
  assert.ok(!(await secret.content()).includes("datasets/pets"), await names());
  const refused = await secret.evaluate(async (key) => {
    const headers = { authorization: `Basic ${btoa(`bob:${key}`)}` };
    return (await fetch("/api/v1/datasets/pets", { headers })).status;
  }, keys.bob);
  assert.equal(refused, 404);
  await secret.click("text=sign out");
  await signIn("ann", keys.ann);
  await secret.waitForSelector("a[href='#/datasets/pets']");
  secret.problems = secret.problems.filter((problem) => !problem.includes("40"));
  await close(secret);
  // Without TLS the same port answers probes, and from this machine also keys.
  assert.equal((await fetch(`http://${closed.http}/livez`)).status, 200);
  const plain = await fetch(`http://${closed.http}/api/v1/status`, { headers: { authorization: `Basic ${btoa(`ann:${keys.ann}`)}` } });
  assert.deepEqual((await plain.json()).datasets.map((one) => one.name), ["cars", "pets"]);
  // Each wrong key waits longer.
  const wrong = { headers: { authorization: `Basic ${btoa("ann:wrong")}` } };
  const began = performance.now();
  for (let tries = 0; tries < 6; tries += 1) assert.equal((await fetch(`http://${closed.http}/api/v1/status`, wrong)).status, 401);
  assert.ok(performance.now() - began > 800, "wrong keys are not slowed down");
});

test("many open pages ask the metadata store no more than one", async () => {
  const calls = async () => {
    const metrics = await (await fetch(`http://${servers[0].http}/metrics`)).text();
    return Number(metrics.match(/diesel_meta_operation_seconds_count\{operation="task"\} (\d+)/)[1]);
  };
  const asked = async (pages) => {
    const before = await calls();
    const ended = performance.now() + 4000;
    const turn = async () => {
      while (performance.now() < ended) {
        await status(servers[0]);
        await pause(200);
      }
    };
    await Promise.all([...Array(pages)].map(turn));
    return (await calls()) - before;
  };
  const [one, many] = [await asked(1), await asked(20)];
  assert.ok(many <= one * 2 + 4, `${one} calls for one page, ${many} for twenty`);
});
