// Puts a number before a noun in its singular or plural.

export function count(number: number, one: string, many: string): string {
  return `${number} ${number === 1 ? one : many}`;
}
