// A training job: whether it waits for data, and for whom.

import { html, useState } from "./preact.js";
import { useStatus, WINDOWS } from "./api.js";
import { Bar, Periods, Plot, Tile, Trouble } from "./plot.js";
import { inTime, WAITS_TOO_LONG } from "./overview.js";
import { ago, bytes, count, part, span } from "./text.js";

// The reason why a node waits, from where its chunks come.
function Hint({ job, members }) {
  const slowest = members.find((one) => one.is_living);
  if (!slowest || slowest.rates.waiting <= WAITS_TOO_LONG) return null;
  const { bytes_from_servers: servers, bytes_from_peers: peers, fallbacks } = slowest.rates;
  const from =
    fallbacks > 0 ? "its workers read files from the servers, past the cache: its memory is full or its agent is slow"
    : servers > peers ? "most of its chunks come from the servers"
    : peers > 0 ? "most of its chunks come from other nodes"
    : "no chunk arrived since the last heartbeat";
  return html`<p class="banner">${slowest.address || slowest.id} waits ${part(slowest.rates.waiting)} of its time: ${from}.
    On that node, <code>dlcmd why --task ${job.task}</code> names what each worker waits for.</p>`;
}

const Members = ({ now, members }) => html`<div class="scroll"><table>
  <tr><th>node</th><th>workers</th><th>files/s</th><th>memory</th><th>in time</th><th>from peers</th><th>from servers</th><th>waits</th><th>failed fetches</th><th>heard</th></tr>
  ${members.map((one) => {
    const of = one.counters;
    const waits = one.rates.waiting > WAITS_TOO_LONG;
    return html`<tr key=${one.id} class=${one.is_living ? "" : "dim"}>
      <td>${one.address || one.id.slice(0, 8)}</td><td>${one.is_living ? of.workers : "left"}</td>
      <td>${count(one.rates.files)}</td>
      <td><${Bar} value=${of.memory_used / one.memory} />${bytes(of.memory_used)}</td>
      <td>${part(inTime(of))}</td>
      <td>${bytes(one.rates.bytes_from_peers)}/s</td><td>${bytes(one.rates.bytes_from_servers)}/s</td>
      <td class=${waits ? "bad" : ""}>${part(one.rates.waiting)}</td>
      <td class=${of.failed_fetches ? "bad" : ""}>${count(of.failed_fetches)}</td>
      <td>${ago(now, one.heard)} ago</td>
    </tr>`;
  })}
</table></div>`;

function Epoch({ job }) {
  const of = job.counters;
  if (of.epoch === null || of.epoch === undefined) return html`<${Tile} label="epoch" number="–" more="no order is read" />`;
  const left = (of.epoch_files - of.epoch_position) / job.rates.files;
  const more = job.rates.files > 0 ? `${span(left)} left` : "nothing is read";
  return html`<${Tile} label=${`epoch ${of.epoch}`} number=${part(of.epoch_position / of.epoch_files)} more=${more} />`;
}

export function Job({ id }) {
  const [period, choose] = useState(WINDOWS[0]);
  const { value: status, error, series } = useStatus(`/api/v1/tasks/${id}`, period);
  if (!status) return html`<${Trouble} error=${error} />${!error && html`<p class="dim">loading</p>`}`;
  const job = status.jobs[0];
  const of = job.counters;
  const waits = job.rates.waiting > WAITS_TOO_LONG;
  const saved = of.hit_bytes ? Math.max(0, 1 - of.bytes_from_servers / of.hit_bytes) : NaN;
  return html`
    <${Trouble} error=${error} />
    <h1>${job.task} <span class="dim">reads ${status.is_limited ? job.dataset : html`<a href=${`#/datasets/${job.dataset}`}>${job.dataset}</a>`}${job.user && ` for ${job.user}`}${!job.is_living && `, ended ${ago(status.now, job.heard)} ago`}</span></h1>
    <div class="tiles">
      <${Tile} label="workers wait" number=${part(job.rates.waiting)} bad=${waits} more=${`${span(of.waited / 1e6)} in all`} />
      <${Tile} label="files" number=${`${count(job.rates.files)}/s`} more=${`${count(of.hits + of.fallbacks)} in all`} />
      <${Tile} label="in time" number=${part(inTime(of))} more=${`${count(of.misses)} waited, ${count(of.fallbacks)} from servers`} />
      <${Epoch} job=${job} />
      <${Tile} label="memory" number=${bytes(of.memory_used)} more=${`of ${bytes(job.memory)} on ${job.members} nodes`} />
      <${Tile} label="reads of servers saved" number=${part(saved)} more=${`${bytes(of.bytes_from_servers)} fetched`} />
    </div>
    <${Hint} job=${job} members=${status.members} />
    <h2>Nodes</h2><${Members} now=${status.now} members=${status.members} />
    ${job.members > status.members.length && html`<p class="dim">${status.members.length} of ${job.members} nodes, the slowest first.</p>`}
    <h2>Over time</h2><${Periods} period=${period} choose=${choose} />
    <div class="plots">
      <${Plot} title="Files per second" series=${series} show=${count} lines=${[["files", "all", "--memory"], ["waited", "waited for", "--servers"], ["fallbacks", "from servers", "--bad"]]} />
      <${Plot} title="Time that workers wait" series=${series} show=${part} least=${0.05} lines=${[["waiting", "waiting", "--bad"]]} />
      <${Plot} title="Bytes per second" least=${1 << 10} series=${series} show=${bytes} lines=${[["bytes", "read", "--memory"], ["bytes_from_peers", "from nodes", "--peers"], ["bytes_from_servers", "from servers", "--servers"]]} />
      <${Plot} title="Memory in use" least=${1 << 20} series=${series} show=${bytes} lines=${[["memory_used", "memory", "--memory"]]} />
    </div>
    <p class="dim">Version ${job.version}. Counts are at most ten seconds old.</p>
  `;
}
