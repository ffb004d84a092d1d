// All servers, jobs and datasets.

import { html } from "./preact.js";
import { Bar, Periods, Plot, Tile } from "./plot.js";
import { ago, bytes, clock, count, part } from "./text.js";

export const WAITS_TOO_LONG = 0.05;

// The part of the files that workers read from memory without a wait.
export const inTime = (of) => {
  const files = of.hits + of.fallbacks;
  return files ? Math.max(0, of.hits - of.misses) / files : NaN;
};

const sum = (list, of) => list.reduce((all, one) => all + of(one), 0);

const milliseconds = (value) => (value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`);

const epoch = (of) => {
  if (of.epoch === null || of.epoch === undefined) return "–";
  const read = of.epoch_files ? `, ${part(of.epoch_position / of.epoch_files)}` : "";
  return `${of.epoch}${read}`;
};

export const Jobs = ({ status, jobs }) => html`<div class="scroll"><table>
  <tr><th>job</th><th class="left">dataset</th><th>nodes</th><th>workers</th><th>files/s</th><th>in time</th><th>waits</th><th>epoch</th><th>heard</th></tr>
  ${jobs.map((job) => {
    const waits = job.rates.waiting > WAITS_TOO_LONG;
    return html`<tr key=${job.id}>
      <td><a href=${`#/jobs/${job.id}`}>${job.task}</a>${job.user && html` <span class="dim">${job.user}</span>`}</td>
      <td class="left">${status.is_limited ? job.dataset : html`<a href=${`#/datasets/${job.dataset}`}>${job.dataset}</a>`}</td>
      <td>${job.members}</td><td>${job.workers}</td><td>${count(job.rates.files)}</td>
      <td>${part(inTime(job.counters))}</td>
      <td class=${waits ? "bad" : ""}>${job.is_living ? part(job.rates.waiting) : "–"}</td>
      <td>${epoch(job.counters)}</td>
      <td class="dim">${job.is_living ? "" : "ended "}${ago(status.now, job.heard)} ago</td>
    </tr>`;
  })}
</table></div>`;

const Servers = ({ status }) => html`<div class="scroll"><table>
  <tr><th>server</th><th class="left">health</th><th>version</th><th>since</th><th>requests/s</th><th>out/s</th><th>memory for reads</th><th>in flight</th><th>resident</th></tr>
  ${status.servers.map((server) => {
    const of = server.counters;
    const health = server.problem || "ok";
    return html`<tr key=${server.id}>
      <td>${server.address.slice(0, 40)}${server.is_me && html` <span class="dim">this one</span>`}</td>
      <td class=${`left wrap ${server.problem ? "bad" : "good"}`}>${health}</td>
      <td>${server.version}</td><td>${ago(status.now, server.started)}</td>
      <td>${count(server.requests_per_second)}</td><td>${bytes(server.sent_per_second)}</td>
      <td><${Bar} value=${of.read_memory_used / of.read_memory} />${part(of.read_memory_used / of.read_memory)}</td>
      <td>${of.requests_in_flight}</td><td>${bytes(of.resident_bytes)}</td>
    </tr>`;
  })}
</table></div>`;

const Datasets = ({ status }) => html`<h2 id="datasets">Datasets</h2>
  ${status.datasets.length === 0 && html`<p class="dim">None${status.is_limited ? " without a key" : ": dlcmd put FOLDER dl://NAME"}.</p>`}
  <div class="names">${status.datasets.map(
    (one) => html`<span key=${one.id}><a href=${`#/datasets/${one.name}`}>${one.name}</a>${one.problem && html` <span class="bad">${one.problem}</span>`}</span>`,
  )}</div>`;

const Failures = ({ status }) => html`<h2>Failed requests</h2><div class="scroll"><table>
  <tr><th>at</th><th class="left">method</th><th class="left">code</th><th class="left">why</th></tr>
  ${status.failures.map(
    (one) => html`<tr><td>${clock(one.at)}</td><td class="left">${one.method}</td><td class="left">${one.code}</td><td class="left wrap">${one.why}</td></tr>`,
  )}
</table></div>`;

export function Overview({ status, series, period, choose }) {
  const living = status.jobs.filter((job) => job.is_living);
  const ended = status.jobs.filter((job) => !job.is_living);
  const servers = status.servers.filter((server) => server.is_living);
  const refused = status.datasets.filter((one) => one.problem).length;
  const waits = Math.max(0, ...living.map((job) => job.rates.waiting));
  const memory = sum(servers, (one) => one.counters.read_memory_used) / sum(servers, (one) => one.counters.read_memory);
  return html`
    <div class="tiles">
      <${Tile} label="jobs read" number=${`${count(sum(living, (job) => job.rates.files))} files/s`} more=${`${living.length} ${living.length === 1 ? "job" : "jobs"}`} />
      <${Tile} label="job that waits most" number=${living.length ? part(waits) : "–"} bad=${waits > WAITS_TOO_LONG} more="of its workers' time" />
      <${Tile} label="servers send" number=${`${bytes(sum(servers, (one) => one.sent_per_second))}/s`} more=${`${count(sum(servers, (one) => one.requests_per_second))} requests/s`} />
      <${Tile} label="servers receive" number=${`${bytes(sum(servers, (one) => one.received_per_second))}/s`} />
      <${Tile} label="memory for reads in use" number=${part(memory)} bad=${memory > 0.9} />
      <${Tile} label="refused datasets" number=${refused} bad=${refused > 0} />
    </div>
    <h2>Servers</h2><${Servers} status=${status} />
    <h2 id="jobs">Jobs</h2>
    ${living.length ? html`<${Jobs} status=${status} jobs=${living} />` : html`<p class="dim">No job reads: start one with <code>--task NAME</code>, or <code>connect(task=...)</code>.</p>`}
    <h2>Traffic</h2><${Periods} period=${period} choose=${choose} />
    <div class="plots">
      <${Plot} title="Requests per second" series=${series} show=${count} lines=${[["reads", "files", "--memory"], ["chunks", "chunks", "--peers"], ["writes", "writes", "--servers"], ["others", "others", "--dim"]]} />
      <${Plot} title="Bytes per second" least=${1 << 10} series=${series} show=${bytes} lines=${[["sent", "sent", "--peers"], ["received", "received", "--servers"]]} />
      <${Plot} title="Time of a request" series=${series} show=${milliseconds} lines=${[["read_p50", "files, half", "--memory"], ["read_p99", "files, 99 %", "--bad"], ["chunks_p50", "chunks, half", "--peers"], ["chunks_p99", "chunks, 99 %", "--servers"]]} />
      <${Plot} title="Failures per second" series=${series} show=${count} lines=${[["failed_requests", "requests", "--bad"], ["store_errors", "chunk store", "--servers"], ["meta_errors", "metadata", "--peers"]]} />
    </div>
    <${Datasets} status=${status} />
    ${ended.length > 0 && html`<h2>Ended jobs</h2><${Jobs} status=${status} jobs=${ended} />`}
    ${status.failures.length > 0 && html`<${Failures} status=${status} />`}
  `;
}
