// The platforms: each account, whether it listens, and what it holds.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import { buildLink } from "../router";
import { AccountForm } from "../setup/account_form";
import { InvitationMaker } from "../setup/invitation";
import { Choice } from "../ui/field";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { words } from "../words";

type Account = { platform: string; account: string; listening?: boolean; error?: string; [name: string]: unknown };

export default function PlatformsPage() {
  const status = useResource((signal) => call("GET /api/status", {}, undefined, signal), [], (entry) => entry.kind === "heard");
  const setup = useResource((signal) => call("GET /api/setup", {}, undefined, signal), []);
  const reload = () => {
    status.reload();
    setup.reload();
  };
  return (
    <>
      <h2>{words.pages.platforms}</h2>
      <Loaded resource={status}>
        {(found) => (
          <Table
            label={words.pages.platforms}
            rows={found.accounts as Account[]}
            getKey={(it) => `${it.platform} ${it.account}`}
            empty={words.platforms.none}
            columns={[
              { title: words.sessions.platform, show: (it) => it.platform },
              { title: words.platforms.account, show: (it) => it.account },
              { title: words.delivery.state, show: (it) => <State account={it} /> },
              { title: words.platforms.more, show: (it) => describeRest(it) },
            ]}
          />
        )}
      </Loaded>
      <p>
        <a href={buildLink("people")}>{words.platforms.pairing}</a>
      </p>
      {status.value?.accounts.length ? <Invitations accounts={status.value.accounts as Account[]} /> : null}
      <h3>{words.setup.platform}</h3>
      <Loaded resource={setup}>{(found) => <AccountForm setup={found} onDone={reload} />}</Loaded>
    </>
  );
}

function State({ account }: { account: Account }) {
  if (account.error) return <span class="bad">{String(account.error)}</span>;
  return <span class={account.listening ? "good" : "bad"}>{account.listening ? words.platforms.listening : words.platforms.silent}</span>;
}

function describeRest({ platform, account, listening, error, ...rest }: Account): string {
  return Object.entries(rest)
    .filter(([, value]) => value !== null && value !== "" && value !== false && typeof value !== "object")
    .map(([name, value]) => `${name}: ${String(value)}`)
    .join(", ");
}

function Invitations({ accounts }: { accounts: Account[] }) {
  const [chosen, choose] = useState("");
  const account = accounts.find((it) => `${it.platform} ${it.account}` === chosen) ?? accounts[0]!;
  const names = accounts.map((it) => `${it.platform} ${it.account}`);
  return (
    <>
      <h3>{words.setup.invite}</h3>
      {accounts.length > 1 && <Choice label={words.platforms.account} value={chosen || names[0]!} options={names.map((it) => [it, it])} onChange={choose} />}
      <InvitationMaker key={chosen} platform={account.platform} account={account.account} />
    </>
  );
}
