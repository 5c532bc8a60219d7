-- The log and what follows from it. Every table except sessions, entries, blobs, cursors, dead_letters,
-- receipts, state_records, spending and identities can be rebuilt from the log.

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

-- No row is ever deleted from this table, so each new pos is higher than every earlier one.
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
-- Curated facts are derived from all notes. These are few, so the index spares a scan of all entries.
create index entries_notes on entries(pos) where kind in ('noted', 'erased');
-- The newest compressions of all sessions, for the same reason.
create index entries_compressions on entries(pos) where kind = 'compressed';

-- Heard entries that no operation has consumed.
create table pending (
  session  text not null,
  seq      integer not null,
  asks     integer not null,
  primary key (session, seq)
) without rowid;

create table operations (
  session      text not null,
  op           integer not null,
  type         text not null,
  state        text not null,
  first        integer not null,
  last         integer not null default 0,
  consumer     text not null default '',
  fence        integer not null default 0,
  attempts     integer not null default 0,
  paused       integer not null default 0,
  blocking     integer not null default 0,
  covers       integer not null default 0,
  undone_at    integer not null default 0,
  compression  integer not null default 0,
  stop         integer not null default 0,
  primary key (session, op)
) without rowid;
create unique index operations_one_turn on operations(session) where state = 'running' and (type = 'turn' or blocking = 1);
create unique index operations_one_compression on operations(session) where state = 'running' and type = 'compression';
create index operations_running on operations(session, consumer) where state = 'running';
create index operations_view on operations(session, type, op);
-- Few operations are undone. They are found in a long session without a scan of the others.
create index operations_undone on operations(session, first, last) where undone_at > 0;

-- A worker wakes, claims and releases a cursor with every turn, and each index costs one more page per write. So there
-- is only one: a session's in-flight batches are found by the primary key, and delays that began in the future are
-- looked for only when the clock was seen to go back.
create table cursors (
  consumer       text not null,
  session        text not null,
  processed_seq  integer not null default 0,
  in_flight      text,
  attempts       integer not null default 0,
  since          real,
  wait           real not null default 0,
  due            real,
  mandatory      integer not null default 0,
  owner          text not null default '',
  lease_since    real not null default 0,
  lease_wait     real not null default 0,
  fence          integer not null default 0,
  error          text not null default '',
  waits_for      text not null default '',
  primary key (session, consumer)
) without rowid;
-- By consumer first, so that a skipped consumer with a hundred thousand due cursors costs the others nothing. The lease
-- is part of the index, so that claimed cursors are passed over without reading their rows.
create index cursors_due on cursors(consumer, due, session, owner, lease_since, lease_wait) where due is not null;

create table dead_letters (
  id        integer primary key autoincrement,
  consumer  text not null,
  session   text not null,
  seq       integer not null,
  part      integer not null default 0,
  key       text not null default '',
  reason    text not null default '',
  in_doubt  integer not null default 0,
  at        real not null,
  state     text not null default 'dead'
);
create index dead_letters_state on dead_letters(state, session, consumer);

create table receipts (
  session   text not null,
  seq       integer not null,
  part      integer not null,
  consumer  text not null,
  key       text not null default '',
  remote    text not null default '',
  in_doubt  integer not null default 0,
  at        real not null,
  primary key (session, seq, part, consumer)
) without rowid;

create table bindings (
  address  text primary key,
  session  text not null
) without rowid;
create index bindings_session on bindings(session);

create table state_records (
  namespace  text not null,
  scope      text not null,
  key        text not null,
  value      text not null,
  version    integer not null,
  primary key (namespace, scope, key)
) without rowid;
-- The highest version of any deleted record. A new record starts above it, so a version is never used twice for a key.
create table state_floor (
  id       integer primary key check (id = 1),
  version  integer not null
);
insert into state_floor(id, version) values (1, 0);

create table spending (
  budget  text not null,
  day     text not null,
  usd     real not null default 0,
  tokens  integer not null default 0,
  primary key (budget, day)
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
