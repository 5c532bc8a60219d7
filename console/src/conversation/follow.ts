// Scrolls to the end when the content grows, unless the user has scrolled away from it.

import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";

const NEAR_PX = 80;

export function useFollow(end: RefObject<HTMLElement | null>, grown: unknown[]): RefObject<HTMLDivElement | null> {
  const box = useRef<HTMLDivElement>(null);
  const there = useRef(true);
  useEffect(() => {
    const element = box.current!;
    const look = () => {
      there.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_PX;
    };
    element.addEventListener("scroll", look, { passive: true });
    return () => element.removeEventListener("scroll", look);
  }, []);
  useEffect(() => {
    if (there.current) end.current?.scrollIntoView({ block: "end" });
  }, grown);
  return box;
}
