// The words of the console in the reader's language. Only that language is loaded.

import { en, type Words } from "./en";

export type { Words };

export const language = navigator.languages.map((it) => it.slice(0, 2)).find((it) => it === "en" || it === "de") ?? "en";

export const words: Words = language === "de" ? (await import("./de")).de : en;
