// Makes a link, also as a QR code, that gives access to whoever opens it first.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { InvitationResponse } from "../api/generated";
import { state } from "../state/console_state";
import { Action } from "../ui/action";
import { CopyButton } from "../ui/copy";
import { Field } from "../ui/field";
import { formatTime } from "../ui/time";
import { words } from "../words";
import { QrCode } from "./qr_code";

export function InvitationMaker({ platform, account }: { platform: string; account: string }) {
  const [person, name] = useState(state.caller.value?.name ?? "");
  const [made, show] = useState<InvitationResponse | null>(null);
  return (
    <div class="invitation">
      <div class="row">
        <Field label={words.setup.invited} value={person} onInput={name} />
        <Action label={words.setup.invite} act={async () => show(await call("POST /api/invitations", {}, { platform, account, person: person.trim() }))} />
      </div>
      {made && (
        <>
          <p>{words.setup.invitation(made.name, formatTime(made.until))}</p>
          <p>
            <a href={made.link} target="_blank" rel="noopener noreferrer">
              {made.link}
            </a>{" "}
            <CopyButton text={made.link} label={words.copy} />
          </p>
          <QrCode text={made.link} label={words.setup.qr} />
        </>
      )}
    </div>
  );
}
