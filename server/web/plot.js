// Plots, tiles and other parts of all screens.

import { html, useEffect, useRef } from "./preact.js";
import { WINDOWS } from "./api.js";

const HEIGHT = 160;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const hour = (seconds) =>
  new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

// Lines over time. `lines`: name in the series, label, colour. `least`: least height of the scale.
export function Plot({ title, series, lines, show, least = 1 }) {
  const box = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    const width = () => Math.max(100, box.current.clientWidth - 4);
    const draw = () => {
      const data = plot.current ? plot.current.data : [[], ...lines.map(() => [])];
      plot.current?.destroy();
      const axis = {
        stroke: colour("--dim"),
        grid: { stroke: colour("--line"), width: 1 },
        ticks: { show: false },
      };
      const options = {
        width: width(),
        height: HEIGHT,
        cursor: { drag: { setScale: false } },
        scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, least) * 1.1] } },
        series: [
          { value: (_, time) => (time ? hour(time) : "–") },
          ...lines.map(([, label, name]) => ({
            label,
            stroke: colour(name),
            width: 1.5,
            value: (_, value) => (value === null || value === undefined ? "–" : show(value)),
          })),
        ],
        axes: [{ ...axis, size: 30, values: (_, times) => times.map(hour) }, { ...axis, size: 64, values: (_, values) => values.map((value) => show(value)) }],
      };
      plot.current = new uPlot(options, data, box.current);
    };
    draw();
    const size = new ResizeObserver(() => plot.current.setSize({ width: width(), height: HEIGHT }));
    size.observe(box.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      size.disconnect();
      scheme.removeEventListener("change", draw);
      plot.current.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => {
    if (series) plot.current.setData([series.times, ...lines.map(([name]) => series.lines[name] || [])]);
  }, [series]);
  return html`<section class="plot" aria-label=${title}><h3>${title}</h3><div ref=${box}></div></section>`;
}

export const Tile = ({ label, number, more, bad }) => html`<div class="tile">
  <div class="label">${label}</div>
  <div class=${bad ? "number bad" : "number"}>${number}</div>
  ${more && html`<div class="more">${more}</div>`}
</div>`;

export const Bar = ({ value }) => html`<span class="bar"
  ><i style=${{ width: `${Math.min(100, 100 * (value || 0))}%` }}></i
></span>`;

export const Periods = ({ period, choose }) => html`<div class="names" role="group" aria-label="Time of the plots">
  ${WINDOWS.map(
    (one) => html`<button key=${one.name} aria-pressed=${one === period} onClick=${() => choose(one)}>${one.name}</button>`,
  )}
</div>`;

export const Trouble = ({ error }) => error && html`<p class="banner" role="alert">${error.message}</p>`;
