// Session addresses and ids.

const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";

export interface Address {
  agent: string;
  platform: string;
  kind: string;
  chat: string;
  person: string; // of a chat in a person's own thread
}

// Parses a session's address: agent:<agent>:<platform>:<kind>:<chat>[:thread:<thread>]…
export function parseAddress(address = ""): Address {
  const [, agent = "", platform = "", kind = "", chat = "", ...labels] = address.split(":").map(decodeURIComponent);
  const thread = labels[0] === "thread" ? (labels[1] ?? "") : "";
  return { agent, platform, kind, chat: thread || chat, person: thread ? chat : "" };
}

// Returns the time in milliseconds with which a session's id begins.
export function getCreationTime(id: string): number {
  return [...id.slice(0, 10)].reduce((sum, char) => sum * 32 + ALPHABET.indexOf(char), 0);
}
