// Files for the next message: chosen, pasted or dropped. Each is uploaded at once, so that sending the message is quick.

import { useState } from "preact/hooks";
import { upload } from "../api/client";
import type { UploadedFile } from "../state/outbox";
import { Problem } from "../ui/problem";
import { formatBytes } from "../ui/time";
import { words } from "../words";

export interface Attachments {
  files: UploadedFile[];
  uploading: number;
  error: unknown;
  add: (files: Iterable<File>) => void;
  remove: (id: string) => void;
  clear: () => void;
}

export function useAttachments(): Attachments {
  const [files, setFiles] = useState<UploadedFile[]>([]);
  const [uploading, setUploading] = useState(0);
  const [error, fail] = useState<unknown>(null);
  const addOne = async (file: File) => {
    setUploading((count) => count + 1);
    try {
      const { id, name, size } = await upload(file);
      setFiles((before) => [...before, { id, name: name || file.name, size }]);
    } catch (caught) {
      fail(caught);
    }
    setUploading((count) => count - 1);
  };
  const add = (given: Iterable<File>) => {
    fail(null);
    for (const file of given) void addOne(file);
  };
  const remove = (id: string) => setFiles((before) => before.filter((file) => file.id !== id));
  return { files, uploading, error, add, remove, clear: () => setFiles([]) };
}

export function AttachButton({ add }: { add: (files: Iterable<File>) => void }) {
  return (
    <label class="quiet attach" title={words.conversation.attach}>
      <span aria-hidden="true">+</span>
      <span class="hidden">{words.conversation.attach}</span>
      <input
        type="file"
        multiple
        class="hidden"
        onChange={(event) => {
          add([...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = "";
        }}
      />
    </label>
  );
}

export function AttachmentList({ attachments }: { attachments: Attachments }) {
  const { files, uploading, error, remove } = attachments;
  if (!files.length && !uploading && !error) return null;
  return (
    <div class="attachments">
      {files.map((file) => (
        <span class="attachment" key={file.id}>
          {file.name} <span class="hint">{formatBytes(file.size)}</span>
          <button type="button" class="quiet" aria-label={words.conversation.detach(file.name)} onClick={() => remove(file.id)}>
            ×
          </button>
        </span>
      ))}
      {uploading > 0 && <span role="status">{words.conversation.uploading}</span>}
      <Problem error={error} />
    </div>
  );
}
