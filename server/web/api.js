// Questions to the server, again and again while the page is seen.

import { useEffect, useRef, useState } from "./preact.js";

const POLL_INTERVAL = 2000;
const KEPT = "diesel-credentials";

// Elsewhere the key would go over the network in plain text.
export const maySignIn = isSecureContext;

export const credentials = () => (maySignIn ? sessionStorage.getItem(KEPT) : null);

export const signIn = (user, key) => {
  const raw = new TextEncoder().encode(`${user}:${key}`);
  sessionStorage.setItem(KEPT, btoa(String.fromCharCode(...raw)));
};

export const signOut = () => sessionStorage.removeItem(KEPT);

export async function ask(path) {
  const known = credentials();
  const headers = known ? { authorization: `Basic ${known}` } : {};
  let response;
  try {
    response = await fetch(path, { headers, signal: AbortSignal.timeout(10000) });
  } catch {
    throw new Error("the server does not answer");
  }
  if (!response.ok) {
    const why = (await response.text()).trim();
    // A refused key is not shown again.
    if (known && (response.status === 401 || response.status === 403)) {
      signOut();
      dispatchEvent(new CustomEvent("refused", { detail: why }));
    }
    throw new Error(why);
  }
  return response;
}

// Asks once for JSON.
export function useAnswer(path) {
  const [answer, setAnswer] = useState({ path: null, value: null, error: null });
  useEffect(() => {
    let ended = false;
    ask(path)
      .then((response) => response.json())
      .then((value) => !ended && setAnswer({ path, value, error: null }))
      .catch((error) => !ended && setAnswer({ path, value: null, error }));
    return () => {
      ended = true;
    };
  }, [path]);
  return answer.path === path ? answer : { value: null, error: null };
}

export const WINDOWS = [
  { name: "15 min", seconds: 900, step: 5 },
  { name: "1 h", seconds: 3600, step: 5 },
  { name: "24 h", seconds: 86400, step: 60 },
];

// Joins new points to the known ones; a time without points is a gap.
function joined(known, series, seconds) {
  const times = [...known.times];
  const lines = {};
  for (const line of series.lines) lines[line.name] = [...(known.lines[line.name] || [])];
  const points = series.lines.length ? series.lines[0].points.length : 0;
  const last = series.until / 1e6;
  for (let number = 0; number < points; number += 1) {
    const time = last - (points - 1 - number) * series.step;
    if (times.length && time <= times[times.length - 1]) continue;
    if (times.length && time > times[times.length - 1] + 1.5 * series.step) {
      times.push(times[times.length - 1] + series.step);
      for (const line of series.lines) lines[line.name].push(null);
    }
    times.push(time);
    for (const line of series.lines) lines[line.name].push(line.points[number]);
  }
  const old = times.findIndex((time) => time > last - seconds);
  if (old > 0) {
    times.splice(0, old);
    for (const line of Object.values(lines)) line.splice(0, old);
  }
  return { times, lines };
}

// The status with its series over a window of time. Each question asks only for new points.
export function useStatus(path, period) {
  const [state, setState] = useState({ value: null, error: null, series: null });
  const known = useRef(null);
  useEffect(() => {
    let ended = false;
    let timer = 0;
    known.current = { times: [], lines: {}, until: 0 };
    const turn = async () => {
      if (!document.hidden) {
        try {
          const { until: since } = known.current;
          const query = `step=${period.step}&${since ? `since=${since}` : `window=${period.seconds}`}`;
          const value = await (await ask(`${path}?${query}`)).json();
          if (ended) return;
          const until = Math.max(known.current.until, value.series.until);
          known.current = { ...joined(known.current, value.series, period.seconds), until };
          setState({ value, error: null, series: known.current });
        } catch (error) {
          if (!ended) setState((last) => ({ ...last, error }));
        }
      }
      if (!ended) timer = setTimeout(turn, POLL_INTERVAL);
    };
    setState({ value: null, error: null, series: null });
    turn();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [path, period]);
  return state;
}
