// The platforms: each account, whether it listens, and what it holds.

import { call } from "../api/client";
import { buildLink } from "../router";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { words } from "../words";

type Account = { platform: string; account: string; listening?: boolean; error?: string; [name: string]: unknown };

export default function PlatformsPage() {
  const status = useResource((signal) => call("GET /api/status", {}, undefined, signal), [], (entry) => entry.kind === "heard");
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
