// Reads a long list page by page, with the cursor that each page names for the next.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { LiveEntry } from "../live/event_stream";
import { useLive } from "./resource";

export interface PagedList<T> {
  items: T[];
  error: unknown;
  loading: boolean;
  isComplete: boolean;
  loadMore: () => void;
  reload: () => void;
}

type Loader<T, C> = (cursor: C | undefined, signal: AbortSignal) => Promise<{ items: T[]; next: C | null }>;

export function usePages<T, C>(load: Loader<T, C>, keys: unknown[], follows: ((entry: LiveEntry) => boolean) | null = null): PagedList<T> {
  const [shown, show] = useState<{ items: T[]; error: unknown; loading: boolean; next: C | null | undefined }>({
    items: [],
    error: null,
    loading: true,
    next: undefined,
  });
  const running = useRef<AbortController | null>(null);

  const read = useCallback((cursor: C | undefined) => {
    running.current?.abort();
    const abort = (running.current = new AbortController());
    show((before) => ({ ...before, loading: true }));
    load(cursor, abort.signal).then(
      ({ items, next }) => {
        if (abort.signal.aborted) return;
        running.current = null;
        show((before) => ({ items: cursor === undefined ? items : [...before.items, ...items], error: null, loading: false, next }));
      },
      (error: unknown) => {
        if (abort.signal.aborted) return;
        running.current = null;
        show((before) => ({ ...before, error, loading: false }));
      },
    );
  }, keys);
  const reload = useCallback(() => read(undefined), [read]);
  useEffect(() => {
    show({ items: [], error: null, loading: true, next: undefined });
    reload();
    return () => running.current?.abort();
  }, [reload]);
  useLive(reload, follows);
  const loadMore = () => {
    if (running.current || shown.next === null || shown.next === undefined) return;
    read(shown.next);
  };
  return { items: shown.items, error: shown.error, loading: shown.loading, isComplete: shown.next === null, loadMore, reload };
}
