// Times and numbers as the reader's language writes them.

import { language } from "../words";

const TIME = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const EXACT = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(language, { day: "numeric", month: "short" });
const FULL = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium" });
const NUMBER = new Intl.NumberFormat(language);
const MONEY = new Intl.NumberFormat(language, { style: "currency", currency: "USD", maximumFractionDigits: 4 });

// All take seconds since 1970, as the API gives them.
export function formatTime(at: number): string {
  return TIME.format(at * 1000);
}

export function formatExactTime(at: number): string {
  return EXACT.format(at * 1000);
}

export function formatFull(at: number): string {
  return FULL.format(at * 1000);
}

// The time of today, else the day.
export function formatShort(at: number): string {
  const date = new Date(at * 1000);
  return date.toDateString() === new Date().toDateString() ? formatTime(at) : DAY.format(date);
}

export function formatSeconds(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${NUMBER.format(Math.round(seconds * 10) / 10)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 86_400 ? `${NUMBER.format(Math.round(seconds / 360) / 10)} h` : `${NUMBER.format(Math.round(seconds / 8640) / 10)} d`;
}

export function formatNumber(value: number): string {
  return NUMBER.format(value);
}

export function formatMoney(usd: number): string {
  return MONEY.format(usd);
}

export function formatBytes(bytes: number): string {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]] as const) if (bytes >= size) return `${NUMBER.format(Math.round(bytes / (size / 10)) / 10)} ${unit}`;
  return `${bytes} B`;
}
