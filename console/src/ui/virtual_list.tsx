// A list that keeps only the visible rows in the document. All rows have the same height.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

const BEYOND = 8; // rows above and below the visible ones

export interface VirtualListProperties<T> {
  label: string;
  items: T[];
  rowHeight: number;
  getKey: (item: T) => string | number;
  onNearEnd?: () => void;
  children: (item: T) => ComponentChildren;
}

export function VirtualList<T>({ label, items, rowHeight, getKey, onNearEnd, children }: VirtualListProperties<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [visible, setVisible] = useState({ first: 0, last: 40 });
  useEffect(() => {
    const element = box.current!;
    const look = () => {
      const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - BEYOND);
      const last = Math.ceil((element.scrollTop + element.clientHeight) / rowHeight) + BEYOND;
      setVisible((before) => (before.first === first && before.last === last ? before : { first, last }));
    };
    const observer = new ResizeObserver(look);
    observer.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    look();
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, [rowHeight]);
  useEffect(() => {
    if (visible.last >= items.length) onNearEnd?.();
  }, [visible.last, items.length]);
  const shown = items.slice(visible.first, visible.last);
  return (
    <div class="virtual" ref={box} tabIndex={0} role="group" aria-label={label}>
      <ol style={{ height: `${items.length * rowHeight}px` }}>
        {shown.map((item, index) => (
          <li
            key={getKey(item)}
            style={{ height: `${rowHeight}px`, top: `${(visible.first + index) * rowHeight}px` }}
            aria-setsize={items.length}
            aria-posinset={visible.first + index + 1}
          >
            {children(item)}
          </li>
        ))}
      </ol>
    </div>
  );
}
