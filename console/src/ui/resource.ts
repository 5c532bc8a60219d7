// Reads an answer of the API for a component: at first, when a key changes, when the console is connected again, and when
// an entry arrives that the component follows. It does not poll.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { LiveEntry } from "../live/event_stream";
import { state } from "../state/console_state";

const SETTLE_MS = 400; // entries come in groups

export interface Resource<T> {
  value: T | undefined;
  error: unknown;
  loading: boolean;
  reload: () => void;
}

export function useResource<T>(
  load: (signal: AbortSignal) => Promise<T>,
  keys: unknown[],
  follows: ((entry: LiveEntry) => boolean) | null = null,
): Resource<T> {
  const [shown, show] = useState<Omit<Resource<T>, "reload">>({ value: undefined, error: null, loading: true });
  const running = useRef(new AbortController());
  const reload = useCallback(() => {
    running.current.abort();
    const abort = (running.current = new AbortController());
    show((before) => ({ ...before, loading: true }));
    load(abort.signal).then(
      (value) => abort.signal.aborted || show({ value, error: null, loading: false }),
      (error: unknown) => abort.signal.aborted || show((before) => ({ ...before, error, loading: false })),
    );
  }, keys);
  useEffect(() => {
    show({ value: undefined, error: null, loading: true });
    reload();
    return () => running.current.abort();
  }, [reload]);
  useLive(reload, follows);
  return { ...shown, reload };
}

// Calls `act` after a reconnection, and after entries that `follows` accepts.
export function useLive(act: () => void, follows: ((entry: LiveEntry) => boolean) | null): void {
  useEffect(() => {
    let timer = 0;
    const listen = (entry: LiveEntry | null) => {
      if (timer || (entry && !follows?.(entry))) return;
      timer = setTimeout(() => {
        timer = 0;
        act();
      }, SETTLE_MS) as unknown as number;
    };
    state.listeners.add(listen);
    return () => {
      state.listeners.delete(listen);
      clearTimeout(timer);
    };
  }, [act]);
}
