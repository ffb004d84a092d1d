// Numbers and times in words.

const scaled = (value, units, base) => {
  let unit = 0;
  while (Math.abs(value) >= base && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  const digits = unit === 0 || Math.abs(value) >= 100 ? 0 : 1;
  return `${value.toFixed(digits)}${units[unit]}`;
};

export const count = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value !== 0 && Math.abs(value) < 10 && !Number.isInteger(value)) return value.toFixed(1);
  return scaled(value, ["", " k", " M", " G"], 1000);
};

export const bytes = (value) =>
  value === null || value === undefined
    ? "–"
    : scaled(value, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"], 1024);

export const part = (value) =>
  value === null || Number.isNaN(value) ? "–" : `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;

export const span = (seconds) => {
  if (!Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 100) return `${whole} s`;
  if (whole < 6000) return `${Math.round(whole / 60)} min`;
  if (whole < 172800) return `${Math.round(whole / 3600)} h`;
  return `${Math.round(whole / 86400)} days`;
};

// The time since a moment, both in microseconds.
export const ago = (now, then) => span((now - then) / 1e6);

export const clock = (micros) => new Date(micros / 1000).toLocaleTimeString();

export const day = (micros) => new Date(micros / 1000).toLocaleString();

// A percent-encoded path as text; bytes that are no UTF-8 stay encoded.
export const decoded = (encoded) => {
  try {
    return decodeURIComponent(encoded);
  } catch {
    return encoded;
  }
};
