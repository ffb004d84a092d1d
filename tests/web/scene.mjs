// Real servers over a real Redis, and a job that reads: what the browser tests look at.
//
// Must hold: all of it ends with the tests, and its folder goes.

import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { crc32 } from "./crc.mjs";
import { deflateSync } from "node:zlib";

const programs = process.env.DIESEL_PROGRAMS;
export const FILES = 2000;
export const PICTURES = 120;
export const HOSTILE = [
  "<script>ran = 1<_script>.html",
  '"><img src=x onerror="ran = 2">.txt',
  "run.svg",
  "run.html",
];

export const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Waits until `is` gives something.
export async function soon(what, is, seconds = 30) {
  for (let tries = 0; tries < seconds * 10; tries += 1) {
    const found = await is();
    if (found) return found;
    await pause(100);
  }
  throw new Error(`not within ${seconds} s: ${what}`);
}

const freePort = () =>
  new Promise((done) => {
    const listening = createServer().listen(0, "127.0.0.1", () => {
      const { port } = listening.address();
      listening.close(() => done(port));
    });
  });

// A picture of one colour.
export function png(width, height, colour) {
  const chunk = (type, data) => {
    const body = Buffer.concat([Buffer.from(type), data]);
    const whole = Buffer.alloc(body.length + 8);
    whole.writeUInt32BE(data.length, 0);
    body.copy(whole, 4);
    whole.writeUInt32BE(crc32(body), body.length + 4);
    return whole;
  };
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 2, 0, 0, 0], 8);
  const row = Buffer.concat([Buffer.from([0]), ...Array(width).fill(Buffer.from(colour))]);
  const rows = Buffer.concat(Array(height).fill(row));
  const magic = Buffer.from("89504e470d0a1a0a", "hex");
  return Buffer.concat([magic, chunk("IHDR", header), chunk("IDAT", deflateSync(rows)), chunk("IEND", Buffer.alloc(0))]);
}

export class Scene {
  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), "diesel-web-"));
    this.processes = new Set();
  }

  path(...names) {
    return join(this.folder, ...names);
  }

  start(name, program, args, options = {}) {
    const log = openSync(this.path(`${name}.log`), "a");
    const child = spawn(program, args, { stdio: ["ignore", log, log], ...options });
    this.processes.add(child);
    child.on("exit", () => this.processes.delete(child));
    return child;
  }

  // A server, with the addresses that it prints.
  async server(name, args, grpc = "127.0.0.1:0", http = "127.0.0.1:0") {
    const log = this.path(`${name}.log`);
    writeFileSync(log, "");
    const all = ["--listen", grpc, "--http", http, "--data", this.path(`data-${name}`), ...args];
    const child = this.start(name, join(programs, "dlserver"), all);
    const address = await soon(`${name} listens`, () => {
      const found = readFileSync(log, "utf8").match(/^listening on (\S+)\nhttp on (\S+)$/m);
      if (child.exitCode !== null) throw new Error(readFileSync(log, "utf8"));
      return found;
    });
    return { name, args, child, grpc: address[1], http: address[2] };
  }

  async redis() {
    const port = await freePort();
    this.start("redis", "redis-server", ["--port", `${port}`, "--bind", "127.0.0.1", "--cluster-enabled", "yes",
      "--cluster-config-file", this.path("nodes.conf"), "--save", "", "--dir", this.folder]);
    const ask = (...words) => execFileSync("redis-cli", ["-p", `${port}`, ...words], { encoding: "utf8", stdio: "pipe" });
    await soon("Redis answers", () => {
      try {
        return ask("cluster", "addslotsrange", "0", "16383").includes("OK");
      } catch {
        return false;
      }
    });
    await soon("the cluster is up", () => ask("cluster", "info").includes("cluster_state:ok"));
    return `redis-cluster://127.0.0.1:${port}`;
  }

  dlcmd(server, node, ...args) {
    const folder = this.path(`run${node}`);
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const env = { ...process.env, DIESEL_SERVER: server || "127.0.0.1:1", DIESEL_RUNTIME_DIR: folder, XDG_CACHE_HOME: this.path("cache") };
    return [join(programs, "dlcmd"), args, { env, encoding: "utf8" }];
  }

  run(server, node, ...args) {
    const [program, words, options] = this.dlcmd(server, node, ...args);
    return execFileSync(program, words, { ...options, stdio: ["ignore", "pipe", "pipe"] });
  }

  // A folder of small files, of pictures, and of names and files that want to run.
  fill() {
    const source = this.path("src");
    mkdirSync(join(source, "train"), { recursive: true });
    mkdirSync(join(source, "hostile"));
    mkdirSync(join(source, "plain"));
    for (let file = 0; file < FILES; file += 1) writeFileSync(join(source, "plain", `${String(file).padStart(5, "0")}.bin`), Buffer.alloc(3000, file));
    for (let file = 0; file < PICTURES; file += 1) writeFileSync(join(source, "train", `${String(file).padStart(3, "0")}.png`), png(37, 21, [(file * 7) % 256, (file * 31) % 256, 120]));
    const run = '<svg xmlns="http://www.w3.org/2000/svg" onload="ran = 3"><script>ran = 4</script></svg>';
    for (const name of HOSTILE) writeFileSync(join(source, "hostile", name), name.endsWith("svg") ? run : "<script>ran = 5</script>");
    return source;
  }

  end() {
    for (let node = 0; node < 4; node += 1) {
      try {
        this.run(this.address, node, "--task", "train", "agent", "stop");
      } catch {
        // Not started, or gone.
      }
    }
    for (const child of this.processes) child.kill("SIGKILL");
    rmSync(this.folder, { recursive: true, force: true });
  }
}
