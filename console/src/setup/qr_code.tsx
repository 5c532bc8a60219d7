// A text as a QR code, for the camera of a phone.

import { encodeQr } from "./qr";

const QUIET = 4; // empty modules around the code

export function QrCode({ text, label }: { text: string; label: string }) {
  const modules = encodeQr(text);
  if (!modules) return null;
  const size = modules.length + 2 * QUIET;
  const path = modules.flatMap((row, y) => row.map((dark, x) => (dark ? `M${x + QUIET} ${y + QUIET}h1v1h-1z` : ""))).join("");
  return (
    <svg class="qr" viewBox={`0 0 ${size} ${size}`} role="img" aria-label={label}>
      <path d={path} />
    </svg>
  );
}
