// The page: its places, and the user.

import { html, render, useEffect, useState } from "./preact.js";
import { maySignIn, signIn, signOut, useStatus, WINDOWS } from "./api.js";
import { DatasetPage } from "./dataset.js";
import { Job } from "./job.js";
import { Overview } from "./overview.js";
import { Trouble } from "./plot.js";
import { ago } from "./text.js";

// Microseconds after which an answer is old.
const LATE = 20e6;

// The place that the address names: `#/`, `#/jobs/ID`, `#/datasets/NAME[/folder|file/PATH]`.
const place = () => {
  const [screen = "", name = "", kind = "", path = ""] = location.hash.replace(/^#\/?/, "").split("/");
  return { screen, name, kind, path };
};

function SignIn({ again, done }) {
  const send = (event) => {
    event.preventDefault();
    const { user, key } = event.target.elements;
    signIn(user.value.trim(), key.value.trim());
    done();
  };
  return html`<form onSubmit=${send} aria-label="Sign in">
    <label>user <input name="user" autocomplete="username" required autofocus /></label>
    <label>key <input name="key" type="password" autocomplete="current-password" required /></label>
    <button>sign in</button>
    ${again && html`<span class="bad" role="alert">${again}</span>`}
  </form>`;
}

function Header({ at, status, error, user }) {
  const living = status ? status.servers.filter((server) => server.is_living) : [];
  const bad = status ? status.servers.filter((server) => server.problem) : [];
  const health = error ? html`<span class="bad">no answer</span>`
    : !status ? "" : html`${living.length} ${living.length === 1 ? "server" : "servers"}, ${bad.length ? html`<span class="bad">${bad.length} with a problem</span>` : html`<span class="good">ok</span>`}`;
  return html`<header>
    <b>DIESEL</b>
    <nav aria-label="Places">
      <a href="#/" aria-current=${at.screen === "" ? "page" : null}>Overview</a>
      ${at.screen !== "" && html`<a href=${location.hash} aria-current="page">${at.screen === "jobs" ? "Job" : at.name}</a>`}
    </nav>
    <span class="dim">${health}</span>
    <span class="end">${user}</span>
  </header>`;
}

function App() {
  const [at, setAt] = useState(place());
  const [period, choose] = useState(WINDOWS[0]);
  const [turn, setTurn] = useState(0);
  const [refused, setRefused] = useState(null);
  useEffect(() => {
    const go = () => {
      setAt(place());
      scrollTo(0, 0);
    };
    const refuse = (event) => {
      setRefused(event.detail);
      setTurn((last) => last + 1);
    };
    addEventListener("hashchange", go);
    addEventListener("refused", refuse);
    return () => {
      removeEventListener("hashchange", go);
      removeEventListener("refused", refuse);
    };
  }, []);
  const again = () => {
    setRefused(null);
    setTurn((last) => last + 1);
  };
  return html`<${Screens} key=${turn} at=${at} period=${period} choose=${choose} refused=${refused} again=${again} />`;
}

function Screens({ at, period, choose, refused, again }) {
  const [signing, setSigning] = useState(false);
  const { value: status, error, series } = useStatus("/api/v1/status", period);
  const leave = () => {
    signOut();
    again();
  };
  const user = status?.user
    ? html`<span>${status.user}</span><button onClick=${leave}>sign out</button>`
    : status?.is_limited && maySignIn && html`<button onClick=${() => setSigning(true)}>sign in</button>`;
  const screen =
    at.screen === "jobs" ? html`<${Job} key=${at.name} id=${at.name} />`
    : at.screen === "datasets" ? html`<${DatasetPage} key=${at.name} name=${at.name} kind=${at.kind} path=${at.path} />`
    : status ? html`<${Overview} status=${status} series=${series} period=${period} choose=${choose} />`
    : !error && html`<p class="dim">loading</p>`;
  const late = status && status.now - status.answered > LATE;
  return html`<${Header} at=${at} status=${status} error=${error} user=${user} />
    <main>
      ${(signing || refused) && html`<${SignIn} again=${refused} done=${again} />`}
      <${Trouble} error=${error} />
      ${late && html`<p class="banner" role="alert">The metadata store has not answered for ${ago(status.now, status.answered)}: what is shown of others is as old.</p>`}
      ${status?.is_limited && html`<p class="dim">Without a key the page shows ids in place of names${maySignIn ? "" : "; to sign in, open it over https or through a tunnel"}.</p>`}
      ${screen}
    </main>`;
}

render(html`<${App} />`, document.getElementById("app"));
