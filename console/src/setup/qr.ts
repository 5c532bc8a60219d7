// Makes a QR code of a short text: bytes, error correction level M, versions 1 to 6, always mask 0, which every reader reads.

const MASK = 0;
const LEVEL_M = 0; // as the format information names it
const VERSIONS: Array<{ blocks: number; data: number; check: number }> = [
  { blocks: 1, data: 16, check: 10 },
  { blocks: 1, data: 28, check: 16 },
  { blocks: 1, data: 44, check: 26 },
  { blocks: 2, data: 32, check: 18 },
  { blocks: 2, data: 43, check: 24 },
  { blocks: 4, data: 27, check: 16 },
]; // words of data and of error correction in each block

// Returns the modules row by row, dark ones as true; null if the text is too long.
export function encodeQr(text: string): boolean[][] | null {
  const bytes = [...new TextEncoder().encode(text)];
  const version = 1 + VERSIONS.findIndex(({ blocks, data }) => bytes.length + 2 <= blocks * data);
  return version ? drawCode(version, interleave(version, fillWords(version, bytes))) : null;
}

function fillWords(version: number, bytes: number[]): number[] {
  const { blocks, data } = VERSIONS[version - 1]!;
  const bits = [0b0100, ...[bytes.length, ...bytes].flatMap((byte) => [byte >> 4, byte & 15]), 0]; // half bytes: mode, length, text, end
  const words: number[] = [];
  for (let at = 0; at < bits.length; at += 2) words.push((bits[at]! << 4) | (bits[at + 1] ?? 0));
  for (let pad = 0xec; words.length < blocks * data; pad ^= 0xec ^ 0x11) words.push(pad);
  return words;
}

function interleave(version: number, words: number[]): number[] {
  const { blocks, data, check } = VERSIONS[version - 1]!;
  const parts = Array.from({ length: blocks }, (_, block) => words.slice(block * data, (block + 1) * data));
  const checks = parts.map((part) => computeCheck(part, check));
  const inTurn = (rows: number[][], length: number) => Array.from({ length }, (_, at) => rows.map((row) => row[at]!)).flat();
  return [...inTurn(parts, data), ...inTurn(checks, check)];
}

// -- Reed-Solomon over GF(256)

function multiply(a: number, b: number): number {
  let product = 0;
  for (let bit = 7; bit >= 0; bit--) {
    product = (product << 1) ^ ((product >> 7) * 0x11d);
    product ^= ((b >> bit) & 1) * a;
  }
  return product;
}

function computeCheck(words: number[], length: number): number[] {
  let generator = [1];
  for (let at = 0, root = 1; at < length; at++, root = multiply(root, 2)) {
    const shifted = [...generator, 0];
    generator = shifted.map((value, place) => value ^ multiply(place ? generator[place - 1]! : 0, root));
  }
  const rest = [...words, ...Array<number>(length).fill(0)];
  for (let at = 0; at < words.length; at++) {
    const factor = rest[at]!;
    generator.forEach((value, place) => (rest[at + place] = rest[at + place]! ^ multiply(value, factor)));
  }
  return rest.slice(words.length);
}

// -- the picture

function drawCode(version: number, words: number[]): boolean[][] {
  const size = 17 + 4 * version;
  const modules = Array.from({ length: size }, () => Array<boolean>(size).fill(false));
  const fixed = modules.map((row) => row.map(() => false));
  const set = (row: number, column: number, dark: boolean) => {
    if (row < 0 || column < 0 || row >= size || column >= size) return;
    modules[row]![column] = dark;
    fixed[row]![column] = true;
  };
  const square = (row: number, column: number, radius: number, isDark: (ring: number) => boolean) => {
    for (let y = -radius; y <= radius; y++) for (let x = -radius; x <= radius; x++) set(row + y, column + x, isDark(Math.max(Math.abs(x), Math.abs(y))));
  };
  for (let at = 0; at < size; at++) for (const [row, column] of [[6, at], [at, 6]] as const) set(row, column, at % 2 === 0);
  for (const [row, column] of [[3, 3], [3, size - 4], [size - 4, 3]] as const) square(row, column, 4, (ring) => ring !== 2 && ring !== 4);
  if (version > 1) square(size - 7, size - 7, 2, (ring) => ring !== 1);
  drawFormat(size, set);
  drawWords(words, modules, fixed);
  return modules;
}

function drawFormat(size: number, set: (row: number, column: number, dark: boolean) => void): void {
  const data = (LEVEL_M << 3) | MASK;
  let rest = data;
  for (let at = 0; at < 10; at++) rest = (rest << 1) ^ ((rest >> 9) * 0x537);
  const bits = ((data << 10) | rest) ^ 0x5412;
  for (let at = 0; at < 15; at++) {
    const dark = ((bits >> at) & 1) === 1;
    // beside the first corner, then beside the other two
    if (at < 8) set(at < 6 ? at : at + 1, 8, dark);
    else set(8, at === 8 ? 7 : 14 - at, dark);
    if (at < 8) set(8, size - 1 - at, dark);
    else set(size - 15 + at, 8, dark);
  }
  set(size - 8, 8, true);
}

function drawWords(words: number[], modules: boolean[][], fixed: boolean[][]): void {
  const size = modules.length;
  let bit = 0;
  let up = true;
  for (let right = size - 1; right > 0; right -= 2, up = !up) {
    if (right === 6) right = 5;
    for (let step = 0; step < size; step++) {
      const row = up ? size - 1 - step : step;
      for (const column of [right, right - 1]) {
        if (fixed[row]![column]) continue;
        const dark = (((words[bit >> 3] ?? 0) >> (7 - (bit & 7))) & 1) === 1;
        bit += 1;
        modules[row]![column] = dark !== ((row + column) % 2 === 0);
      }
    }
  }
}
