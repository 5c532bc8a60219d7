-- The log, and the rows that follow from it. `entries` is the truth; all but sessions.id, lanes, parked, receipts,
-- positions, spending and identities can be rebuilt from it.

create table sessions (
  id          text primary key,
  agent       text not null,
  address     text not null,
  next_seq    integer not null default 1,
  generation  integer not null default 0,
  erasures    integer not null default 0,
  created     real not null,
  title       text not null default '',
  parent      text not null default '',
  parent_at   integer not null default 0,
  choices     text not null default '{}',
  names       text not null default '{}'
) without rowid;
create index sessions_title on sessions(title collate nocase) where title <> '';
create index sessions_parent on sessions(parent) where parent <> '';

-- no row is ever deleted from here, so the next pos is always higher than any before
create table entries (
  pos      integer primary key,
  session  text not null,
  seq      integer not null,
  kind     text not null,
  op       integer,
  author   text not null,
  at       real not null,
  version  integer not null,
  body     text,
  salt     blob,
  digest   blob not null,
  dedup    text
);
create unique index entries_place on entries(session, seq);
create unique index entries_dedup on entries(dedup) where dedup is not null;

-- heard entries that no operation has consumed
create table pending (
  session  text not null,
  seq      integer not null,
  asks     integer not null,
  primary key (session, seq)
) without rowid;

create table operations (
  session    text not null,
  op         integer not null,
  what       text not null,
  state      text not null,
  first      integer not null,
  last       integer not null default 0,
  reader     text not null default '',
  fence      integer not null default 0,
  attempts   integer not null default 0,
  paused     integer not null default 0,
  blocking   integer not null default 0,
  covers     integer not null default 0,
  undone_at  integer not null default 0,
  fold       integer not null default 0,
  stop       integer not null default 0,
  primary key (session, op)
) without rowid;
create unique index operations_one_turn on operations(session) where state = 'running' and (what = 'turn' or blocking = 1);
create unique index operations_one_fold on operations(session) where state = 'running' and what = 'fold';
create index operations_running on operations(session, reader) where state = 'running';
create index operations_view on operations(session, what, op);

create table lanes (
  reader       text not null,
  session      text not null,
  position     integer not null default 0,
  flight       text,
  attempts     integer not null default 0,
  since        real,
  wait         real not null default 0,
  due          real,
  firm         integer not null default 0,
  owner        text not null default '',
  lease_since  real not null default 0,
  lease_wait   real not null default 0,
  fence        integer not null default 0,
  error        text not null default '',
  primary key (session, reader)
) without rowid;
-- by reader first: one reader that is skipped, with a hundred thousand lanes due, costs the others nothing; with the
-- lease, so that lanes in somebody's hands are passed over without a look at their rows
create index lanes_due on lanes(reader, due, session, owner, lease_since, lease_wait) where due is not null;
create index lanes_since on lanes(since) where due is not null;
create index lanes_owner on lanes(owner) where owner <> '';
create index lanes_flight on lanes(session) where flight is not null;

create table parked (
  id        integer primary key autoincrement,
  reader    text not null,
  session   text not null,
  seq       integer not null,
  part      integer not null default 0,
  key       text not null default '',
  reason    text not null default '',
  doubtful  integer not null default 0,
  at        real not null,
  state     text not null default 'parked'
);
create index parked_state on parked(state, session, reader);

create table receipts (
  session   text not null,
  seq       integer not null,
  part      integer not null,
  reader    text not null,
  key       text not null default '',
  remote    text not null default '',
  doubtful  integer not null default 0,
  at        real not null,
  primary key (session, seq, part, reader)
) without rowid;

create table bindings (
  address  text primary key,
  session  text not null
) without rowid;
create index bindings_session on bindings(session);

create table positions (
  platform  text not null,
  account   text not null,
  name      text not null,
  value     text not null,
  primary key (platform, account, name)
) without rowid;

create table spending (
  purse   text not null,
  day     text not null,
  usd     real not null default 0,
  tokens  integer not null default 0,
  primary key (purse, day)
) without rowid;

create table identities (
  identity  text primary key,
  person    text not null,
  at        real not null
) without rowid;

create table blobs (
  digest  text primary key,
  data    blob not null
);
