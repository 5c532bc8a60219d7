// Calls routes of the HTTP API. Paths, parameters, bodies and answers are typed by the table of routes.

import type { ApiRoutes, ErrorDetail } from "./generated";
import { login } from "../login/login";

export type Route = keyof ApiRoutes;
export type Parameters<R extends Route> = ApiRoutes[R]["parameters"];
export type Body<R extends Route> = ApiRoutes[R]["body"];
export type Answer<R extends Route> = ApiRoutes[R]["answer"];

// A request that the gateway refused. `status` is 0 if it did not answer.
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly type: string,
    message: string,
    readonly remedy: string,
  ) {
    super(message);
  }
}

export async function call<R extends Route>(route: R, parameters?: Parameters<R>, body?: Body<R>, signal?: AbortSignal): Promise<Answer<R>> {
  const response = await request(route, parameters, body, signal);
  return (await response.json()) as Answer<R>;
}

// Returns the text of a route that does not answer with one JSON value, such as an export.
export async function callForText<R extends Route>(route: R, parameters?: Parameters<R>): Promise<string> {
  return (await request(route, parameters, undefined)).text();
}

async function request(route: Route, parameters: object = {}, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const [method, path] = route.split(" ") as [string, string];
  const options: RequestInit = { method, ...(signal && { signal }) };
  if (method !== "GET") {
    options.headers = { "content-type": "application/json" };
    options.body = JSON.stringify(body ?? {});
  }
  return send(buildUrl(path, parameters), options);
}

async function send(url: string, options: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await login.fetch(url, options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", String(error), "");
  }
  if (!response.ok) throw await readRefusal(response);
  return response;
}

// Stores a file for a message that follows.
export async function upload(file: File): Promise<Answer<"POST /api/files">> {
  const path = buildUrl("/api/files", { name: file.name, media: file.type });
  const response = await send(path, { method: "POST", headers: { "content-type": "application/octet-stream" }, body: file });
  return (await response.json()) as Answer<"POST /api/files">;
}

// Puts path parameters into the path, and the others behind it.
export function buildUrl(path: string, parameters: object): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (path.includes(`{${name}}`)) path = path.replace(`{${name}}`, encodeURIComponent(String(value)));
    else if (value !== undefined && value !== "") query.set(name, String(value));
  }
  return query.size ? `${path}?${query}` : path;
}

async function readRefusal(response: Response): Promise<ApiError> {
  const given = (await response.json().catch(() => ({}))) as { error?: Partial<ErrorDetail> };
  const { type = "refused", message = response.statusText, remedy = "" } = given.error ?? {};
  return new ApiError(response.status, type, message, remedy);
}
