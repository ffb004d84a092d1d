// A dataset, its folders and its files.

import { html, useEffect, useRef, useState } from "./preact.js";
import { ask, useAnswer } from "./api.js";
import { Tile, Trouble } from "./plot.js";
import { bytes, count, day, decoded } from "./text.js";

const PICTURE = /\.(png|jpe?g|gif|webp|bmp)$/i;
const SMALL = 1 << 20;
const FIRST = 4096;
const WHOLE = 8 << 20;

const api = (name) => `/api/v1/datasets/${encodeURIComponent(name)}`;
const link = (name, kind, path) => `#/datasets/${name}/${kind}/${path}`;

// A word for a shell; bytes that are no UTF-8 are written as a shell reads them.
const quoted = (before, encoded) => {
  const text = decoded(encoded);
  if (text !== encoded || !encoded.includes("%")) return `'${before}${text.replaceAll("'", "'\\''")}'`;
  return `$'${before}${encoded.replaceAll("%", "\\x")}'`;
};

// A picture whose bytes come with the key of the user.
function Picture({ path, name, large }) {
  const place = useRef(null);
  const [source, setSource] = useState(null);
  const [size, setSize] = useState("");
  const [isNone, setIsNone] = useState(false);
  useEffect(() => {
    let url = null;
    let ended = false;
    const load = async () => {
      try {
        const blob = await (await ask(path)).blob();
        if (ended) return;
        if (!blob.type.startsWith("image/")) return setIsNone(true);
        url = URL.createObjectURL(blob);
        setSource(url);
      } catch {
        // The name stays without a picture.
      }
    };
    const seen = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) {
        seen.disconnect();
        load();
      }
    });
    seen.observe(place.current);
    return () => {
      ended = true;
      seen.disconnect();
      if (url) URL.revokeObjectURL(url);
    };
  }, [path]);
  const measure = ({ target }) => setSize(`${target.naturalWidth} × ${target.naturalHeight} pixels`);
  if (isNone && large) return html`<${Beginning} path=${path} />`;
  return html`<span class=${large ? "" : "frame"} ref=${place}>
    ${source && html`<img class=${large ? "whole" : ""} src=${source} alt=${name} onLoad=${measure} />`}
    ${large && html`<p class="dim">${size}</p>`}
  </span>`;
}

const Crumbs = ({ name, path }) => {
  const parts = path ? path.split("%2F") : [];
  return html`<p class="names"><a href=${`#/datasets/${name}`}>dl://${name}</a>${parts.map(
    (one, number) => html`<span key=${number}>/ <a href=${link(name, "folder", parts.slice(0, number + 1).join("%2F"))}>${decoded(one)}</a></span>`,
  )}</p>`;
};

function Folder({ name, path }) {
  const [pages, setPages] = useState([""]);
  useEffect(() => setPages([""]), [name, path]);
  return html`<${Crumbs} name=${name} path=${path} />
    ${pages.map((after, number) => html`<${Page} key=${`${path} ${after}`} name=${name} path=${path} after=${after}
      more=${number === pages.length - 1 && ((next) => setPages([...pages, next]))} />`)}`;
}

function Page({ name, path, after, more }) {
  const { value, error } = useAnswer(`${api(name)}/list?folder=${path}${after && `&after=${after}`}`);
  if (!value) return html`<${Trouble} error=${error} />`;
  const pictures = value.entries.filter((one) => !one.is_folder && PICTURE.test(one.name) && one.size <= SMALL);
  const others = value.entries.filter((one) => !pictures.includes(one));
  return html`
    ${others.length > 0 && html`<div class="scroll"><table>
      <tr><th>name</th><th>size</th><th>time</th></tr>
      ${others.map((one) => html`<tr key=${one.path}>
        <td class="wrap"><a href=${link(name, one.is_folder ? "folder" : "file", one.path)}>${one.name}${one.is_folder && "/"}</a></td>
        <td>${one.is_folder ? "" : bytes(one.size)}</td><td>${one.is_folder ? "" : day(one.mtime / 1000)}</td>
      </tr>`)}
    </table></div>`}
    ${pictures.length > 0 && html`<div class="pictures">${pictures.map(
      (one) => html`<a key=${one.path} href=${link(name, "file", one.path)} title=${one.name}>
        <${Picture} path=${`${api(name)}/file?path=${one.path}`} name=${one.name} /><span>${one.name}</span></a>`,
    )}</div>`}
    ${value.next && more && html`<p><button onClick=${() => more(value.next)}>more</button></p>`}
    ${value.entries.length === 0 && html`<p class="dim">Nothing.</p>`}
  `;
}

// Bytes as text, or as hexadecimal digits when they are no text.
function shown(raw) {
  const text = new TextDecoder("utf-8").decode(raw);
  const strange = [...text].filter((letter) => letter === "\uFFFD" || (letter < " " && !"\n\r\t".includes(letter)));
  if (strange.length <= text.length / 50) return text;
  const lines = [];
  for (let start = 0; start < raw.length; start += 16) {
    const row = [...raw.slice(start, start + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}

function Beginning({ path }) {
  const [state, setState] = useState({ text: null, error: null });
  useEffect(() => {
    let ended = false;
    ask(`${path}&length=${FIRST}`)
      .then((response) => response.arrayBuffer())
      .then((raw) => !ended && setState({ text: shown(new Uint8Array(raw)), error: null }))
      .catch((error) => !ended && setState({ text: null, error }));
    return () => {
      ended = true;
    };
  }, [path]);
  return html`<${Trouble} error=${state.error} />${state.text !== null && html`<pre tabindex="0">${state.text}</pre>`}`;
}

function File({ name, path }) {
  const parts = path.split("%2F");
  const folder = parts.slice(0, -1).join("%2F");
  const last = decoded(parts[parts.length - 1]);
  const file = `${api(name)}/file?path=${path}`;
  const { value, error } = useAnswer(`${api(name)}/entry?path=${path}`);
  const command = `dlcmd get ${quoted(`dl://${name}/`, path)} .`;
  return html`<${Crumbs} name=${name} path=${folder} />
    <h1>${last}</h1><${Trouble} error=${error} />
    ${value && html`
      <p>${bytes(value.size)} <span class="dim">of ${day(value.mtime / 1000)}, chunk <code>${value.chunk}</code>, CRC-32C <code>${value.crc32c}</code></span></p>
      <p><code>${command}</code></p>
      ${PICTURE.test(last) && value.size <= WHOLE ? html`<${Picture} path=${file} name=${last} large=${true} />` : html`<${Beginning} path=${file} />`}
    `}`;
}

const Leases = ({ leases }) => html`<h2>Leases</h2><div class="scroll"><table>
  <tr><th>job</th><th class="left">version</th><th>until</th><th>members</th></tr>
  ${leases.map((one) => html`<tr><td>${one.task} <span class="dim">${one.user}</span></td><td class="left">${one.version.slice(0, 12)}</td><td>${day(one.until)}</td><td>${one.in_use ? "living" : "none"}</td></tr>`)}
</table></div>`;

function About({ name }) {
  const { value, error } = useAnswer(api(name));
  if (!value) return html`<${Trouble} error=${error} />${!error && html`<p class="dim">loading</p>`}`;
  const mean = value.files ? value.bytes / value.files : 0;
  return html`
    ${value.problem && html`<p class="banner">${value.problem}</p>`}
    <div class="tiles">
      <${Tile} label="files" number=${count(value.files)} more=${mean ? `${bytes(mean)} each` : ""} />
      <${Tile} label="bytes" number=${bytes(value.bytes)} />
      <${Tile} label="objects" number=${count(value.objects)} more=${`chunks of ${bytes(value.chunk_size)}`} />
      <${Tile} label="small chunks" number=${count(value.small_chunks)} more=${value.small_chunks ? "dlcmd purge merges them" : "nothing to merge"} />
      <${Tile} label="created" number=${new Date(value.created / 1000).toLocaleDateString()} more=${`version ${value.version.slice(0, 12)}`} />
    </div>
    ${value.leases.length > 0 && html`<${Leases} leases=${value.leases} />`}
  `;
}

export const DatasetPage = ({ name, kind, path }) =>
  kind === "file"
    ? html`<${File} key=${path} name=${name} path=${path} />`
    : html`<h1>dl://${name}</h1>${!path && html`<${About} name=${name} />`}<h2>Files</h2><${Folder} name=${name} path=${path} />`;
