// A table whose columns are given by their titles.

import type { ComponentChildren } from "preact";

export interface Column<T> {
  title: string;
  show: (row: T) => ComponentChildren;
  isNumber?: boolean;
}

export function Table<T>({ label, rows, columns, empty, getKey }: {
  label: string;
  rows: T[];
  columns: Array<Column<T>>;
  empty: string;
  getKey: (row: T) => string | number;
}) {
  if (!rows.length) return <p class="hint">{empty}</p>;
  return (
    <div class="table" tabIndex={0} role="group" aria-label={label}>
      <table class="data">
        <thead>
          <tr>
            {columns.map((column) => (
              <th scope="col" class={column.isNumber ? "number" : undefined}>
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={getKey(row)}>
              {columns.map((column) => (
                <td class={column.isNumber ? "number" : undefined}>{column.show(row)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
